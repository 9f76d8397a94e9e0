"""State in an object store, Spark's own checkpoint on the local disk."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import icestream as ice
from icestream.api.writer import StreamWriter
from icestream.cli import app
from icestream.core.errors import DefinitionError
from icestream.dashboard.query_list import QueryList
from icestream.state.stores.bucket import open_bucket
from tests.fixtures.object_store import BUCKET, KEY, SECRET, ObjectStoreServer

pytestmark = pytest.mark.spark

SCHEMA = "time timestamp, key string, value bigint"


def write_events(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    seconds = [60 * number + 3 * each for each in range(20)]
    events = pa.table(
        {
            "time": pa.array([each * 1_000_000 for each in seconds], pa.timestamp("us", "UTC")),
            "key": [f"key-{each % 3}" for each in range(20)],
            "value": pa.array(range(20), pa.int64()),
        }
    )
    path = folder / f"{number:03d}.parquet"
    pq.write_table(events, path)
    # Spark reads files in the order of these times
    os.utime(path, (1_000_000 + number, 1_000_000 + number))


def query_over(
    spark: SparkSession, folder: Path, state: str, options: dict[str, str]
) -> StreamWriter:
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    counted = (
        ice.stream(events.parquet(str(folder / "in")), time="time", slack="10 seconds")
        .window("30 seconds")
        .groupBy("key")
        .agg(ice.count().alias("n"), ice.sum("value").alias("total"))
    )
    writer = counted.writeStream.format("parquet").option("path", str(folder / "out"))
    writer = writer.option("checkpointLocation", str(folder / "chk")).option("stateLocation", state)
    for key, value in options.items():
        writer = writer.option(f"storage.{key}", value)
    writer = writer.option("localDir", str(folder / "local")).memory("64 MB").shards(2)
    return writer.trigger(availableNow=True).option("flush", True)


def rows_of(spark: SparkSession, folder: Path) -> list[str]:
    found = spark.read.parquet(str(folder / "out")).select("window.start", "key", "n", "total")
    return sorted(map(str, found.collect()))


def expected(spark: SparkSession, folder: Path) -> list[str]:
    from pyspark.sql import functions as sf

    events = spark.read.schema(SCHEMA).parquet(str(folder / "in"))
    grouped = events.groupBy(sf.window("time", "30 seconds").alias("window"), "key").agg(
        sf.count("*").alias("n"), sf.sum("value").alias("total")
    )
    return sorted(map(str, grouped.select("window.start", "key", "n", "total").collect()))


def objects(store: ObjectStoreServer) -> Iterator[tuple[str, bytes]]:
    link = http.client.HTTPConnection("127.0.0.1", store.port)
    link.request("GET", f"/{BUCKET}?list-type=2")
    for key in re.findall(r"<Key>([^<]+)</Key>", link.getresponse().read().decode()):
        link.request("GET", f"/{BUCKET}/{quote(key)}")
        yield key, link.getresponse().read()
    link.close()


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    open_bucket.cache_clear()


def test_oracle_a_query_with_its_state_in_a_store(
    spark: SparkSession,
    object_store: ObjectStoreServer,
    tmp_path: Path,
    clean: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = f"s3://{BUCKET}/oracle"
    (tmp_path / "in").mkdir()
    writer = query_over(spark, tmp_path, state, object_store.options)
    progress: list[Any] = []
    with object_store.failing(0.05, 1) as faults:
        faults.delay = 0.02
        for start in (0, 2):
            # the second start goes on from the store
            for number in (start, start + 1):
                write_events(tmp_path / "in", number)
            query = writer.start()
            query.awaitTermination()
            progress += query.recentProgress
    assert rows_of(spark, tmp_path) == expected(spark, tmp_path)
    assert not (tmp_path / "chk" / "icestream").exists()
    requests = [each["icestream"]["storageRequests"] for each in progress]
    assert all(each["commit"] >= 1 for each in requests)
    assert sum(each["shards"] for each in requests) >= 4, "a version for each file"

    stored = dict(objects(object_store))
    assert any(key.startswith("oracle/icestream/commits/") for key in stored)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    texts = [repr(writer), json.dumps(progress, default=str)]
    texts += [data.decode("latin1") for data in stored.values()]
    texts += [path.read_bytes().decode("latin1") for path in written]
    assert not any(secret in text for secret in (KEY, SECRET) for text in texts)

    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    shown = CliRunner().invoke(app, ["state", "show", state])
    assert shown.exit_code == 0, shown.output
    assert CliRunner().invoke(app, ["state", "verify", state]).exit_code == 0
    assert [each["checkpoint"] for each in QueryList([state]).queries()] == [state]


def test_options_of_stores_need_a_store(spark: SparkSession, tmp_path: Path) -> None:
    write_events(tmp_path / "in", 0)
    writer = query_over(spark, tmp_path, str(tmp_path / "state"), {"endpoint": "http://x"})
    with pytest.raises(DefinitionError, match=r"'storage\.\*' are for object stores"):
        writer.start()
    with pytest.raises(DefinitionError, match="ftp://"):
        query_over(spark, tmp_path, "ftp://host/x", {}).start()


_KILLED = """
import sys
from pathlib import Path
from urllib.parse import quote
import icestream as ice
from tests.api.test_state_location import query_over

spark = ice.local_session("killed", cores=2, memory="1g")
query_over(spark, Path(sys.argv[1]), sys.argv[2], {}).start().awaitTermination()
"""


@pytest.mark.slow
def test_crash_a_query_on_spark_with_its_state_in_a_store(
    spark: SparkSession, object_store: ObjectStoreServer, tmp_path: Path, clean: None
) -> None:
    for number in range(8):
        write_events(tmp_path / "in", number)
    environment = os.environ | object_store.environment
    ended, lives = None, 0
    with object_store.failing(0.05, 2) as faults:
        while ended != 0:
            lives += 1
            command = [sys.executable, "-c", _KILLED, str(tmp_path), f"s3://{BUCKET}/killed"]
            process = subprocess.Popen(command, env=environment, start_new_session=True)
            dies_at = faults.requests.total() + 12 + 17 * lives if lives < 5 else None

            def kill(process: Any = process, dies_at: int | None = dies_at) -> None:
                if dies_at is not None and faults.requests.total() >= dies_at:
                    os.killpg(process.pid, signal.SIGKILL)

            faults.before = kill
            ended = process.wait(timeout=200)
            faults.before = lambda: None
            assert ended in (0, -signal.SIGKILL)
    assert lives > 2
    assert rows_of(spark, tmp_path) == expected(spark, tmp_path)
