from __future__ import annotations

import pickle
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from icestream.core.errors import StorageError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.nodes.queries import Plan, Source
from icestream.plan.windows.grid import Windows
from icestream.runtime.local import LocalQuery
from icestream.runtime.spark import remote
from icestream.runtime.spark.remote import RemoteFiles
from icestream.runtime.version.quotas import LEAST_QUOTA
from icestream.runtime.version.settings import Settings
from icestream.state.files import Files, LocalFiles

SECOND = 1_000_000

pytestmark = pytest.mark.spark


def uri(folder: Path) -> str:
    return f"file://{folder}"


def test_a_second_put_of_one_path_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    files, path = RemoteFiles(), f"{uri(tmp_path)}/commits/1.json"
    assert files.put(path, b"first")
    assert not files.put(path, b"second")
    assert files.read(path) == b"first"


class _Failure(Py4JJavaError):  # type: ignore[misc]
    """A failure of the JVM without a JVM."""

    def __init__(self) -> None:
        Exception.__init__(self, "connection reset")
        self.java_exception = "connection reset"

    def __str__(self) -> str:
        return "connection reset"


def test_put_reads_back_what_became_of_it(tmp_path: Path) -> None:
    files, path = RemoteFiles(), f"{uri(tmp_path)}/1"
    place = tmp_path / "1"

    def lost_answer() -> None:
        place.write_bytes(b"ours")
        raise _Failure

    def overtaken() -> None:
        place.write_bytes(b"theirs")
        raise _Failure

    def failed() -> None:
        raise _Failure

    assert remote._created(files, path, b"ours", lost_answer)
    assert not remote._created(files, path, b"ours", overtaken)
    assert not remote._created(files, path, b"ours", lambda: None)
    place.unlink()
    with pytest.raises(StorageError, match="connection reset"):
        remote._created(files, path, b"ours", failed)
    with pytest.raises(StorageError, match="does not have it"):
        remote._created(files, path, b"ours", lambda: None)


def test_put_works_in_any_thread_of_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    made: list[bool] = []
    path = f"{uri(tmp_path)}/commits/1.json"
    thread = threading.Thread(target=lambda: made.append(RemoteFiles().put(path, b"x")))
    thread.start()
    thread.join()
    assert made == [True]


def test_put_needs_the_drivers_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", staticmethod(lambda: None))
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    with pytest.raises(StorageError, match="only be created by the driver"):
        RemoteFiles().put("hdfs://nowhere/x", b"")


def test_tasks_need_no_jvm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SparkSession, "getActiveSession", staticmethod(lambda: None))
    files: RemoteFiles = pickle.loads(pickle.dumps(RemoteFiles()))
    folder = f"{uri(tmp_path)}/deep/folder"
    assert files.list(folder) == []
    new = files.create(f"{folder}/a")
    new.write(b"0123456789")
    new.sync()
    new.close()
    assert files.list(folder) == ["a"]
    assert list(files.walk(uri(tmp_path))) == ["deep/folder/a"]
    assert list(files.walk(f"{folder}/a")) == list(files.walk(f"{folder}/nothing")) == []
    opened = files.open(f"{folder}/a")
    assert opened.size == 10
    assert opened.read_at(3, 4) == b"3456"
    assert opened.read_at(8, 10) == b"89"
    opened.close()
    files.rename(f"{folder}/a", f"{folder}/b")
    assert files.exists(f"{folder}/b")
    assert not files.exists(f"{folder}/a")
    files.unlink(f"{folder}/b")
    files.unlink(f"{folder}/b")
    assert files.list(folder) == []
    with pytest.raises(FileNotFoundError):
        files.open(f"{folder}/b")


def test_oracle_a_query_on_remote_files_gives_the_rows_of_local_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    plan = Plan.of(
        sources=(Source("s", SECOND),),
        windows=Windows(4 * SECOND, SECOND),
        keys=pa.schema([("key", pa.int64())]),
        inputs=pa.schema([("x0", pa.int64())]),
        expressions=("value",),
        aggregates=(Aggregate("count", None, "n"), Aggregate("max", "x0", "top")),
        time=pa.timestamp("us"),
    )

    def rows(files: Files, root: str, local: Path) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for number in range(4):
            # a new query for every batch: everything comes back from the files
            settings = Settings(root, str(local), 2 * LEAST_QUOTA, shards=2)
            query = LocalQuery(plan, settings, files, parcel_files=LocalFiles())
            times = (np.arange(50) + 50 * number) * SECOND // 10
            batch = pa.RecordBatch.from_arrays(
                [
                    pa.array(times).cast(plan.time),
                    pa.array(np.zeros(50, dtype=np.int32)),
                    pa.array(times % 3),
                    pa.array(times % 1000),
                ],
                schema=plan.batch_schema,
            )
            found += query.feed([[batch]], number).to_pylist()
            if number == 3:
                found += query.flush().to_pylist()
            query.close()
        return sorted(found, key=str)

    ours = rows(RemoteFiles(), f"{uri(tmp_path)}/remote", tmp_path / "a")
    assert ours == rows(LocalFiles(), str(tmp_path / "local"), tmp_path / "b")
    assert ours
