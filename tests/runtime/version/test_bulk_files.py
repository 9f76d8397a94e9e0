from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icestream.runtime.spark.tasks import SparkExecutor
from icestream.runtime.version import bulk_files
from icestream.runtime.version.bulk_files import BulkFiles
from icestream.state.files import LocalFiles
from icestream.state.stores.bucket import REQUESTS
from icestream.state.stores.store_files import StoreFiles
from tests.fixtures.object_store import BUCKET, ObjectStoreServer, in_memory

Work = Sequence[Callable[[], Any]]


def names_in(folder: str, count: int) -> list[str]:
    return [f"{folder}/{number * 7919 % 100_000:06x}.pack" for number in range(count)]


@pytest.mark.parametrize("known", ["none", "some", "all", "more"])
def test_parity_tasks_list_and_remove_as_the_driver_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    monkeypatch.setattr(bulk_files, "NAMES_AT_ONCE", 10)
    folder = f"memory://bucket{tmp_path}/segments"
    files = StoreFiles(copies=str(tmp_path / "copies"), connect=in_memory)
    names = names_in(folder, 130)
    for name in (*names, f"{folder}x/other.pack"):
        files.put(name, b"four")
    jobs: list[int] = []

    def each(work: Work) -> list[Any]:
        jobs.append(len(work))
        return [pickle.loads(pickle.dumps(piece))() for piece in work]

    bulk = BulkFiles(files, each, lambda work: work())
    told = {
        "none": [],
        "some": names[::2],
        "all": names,
        "more": names_in(folder, 400),
    }
    cuts = [name.rpartition("/")[2] for name in told[known][25::25]]
    assert bulk.sizes(folder, cuts) == dict.fromkeys(names, 4)
    bulk.remove(names[:7])
    before = REQUESTS.total()
    bulk.remove(names[7:120])
    assert set(bulk.sizes(folder)) == {*names[120:]}
    assert jobs == {"none": [12], "some": [3, 12], "all": [6, 12], "more": [16, 12]}[known]
    # every task removes what one request can, and the driver lists once
    assert REQUESTS.total() - before == 13
    assert files.list(f"{folder}x") == ["other.pack"]


def test_files_on_disks_are_removed_by_the_driver(tmp_path: Path) -> None:
    names = names_in(str(tmp_path), 1200)
    for name in names:
        Path(name).touch()
    later: list[Callable[[], None]] = []
    bulk = BulkFiles(LocalFiles(), lambda work: pytest.fail(f"{len(work)} tasks"), later.append)
    assert set(bulk.sizes(str(tmp_path), ["7"])) == {*names}
    bulk.remove(names)
    assert len([*tmp_path.iterdir()]) == 1200
    (remove,) = later
    remove()
    assert not [*tmp_path.iterdir()]


@pytest.mark.spark
def test_tasks_on_spark_remove_files_of_a_store(
    spark: SparkSession, object_store: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_files, "NAMES_AT_ONCE", 5)
    files, folder = StoreFiles(object_store.options), f"s3://{BUCKET}/by-tasks"
    names = names_in(folder, 12)
    for name in names:
        files.put(name, b"four")
    executor = SparkExecutor(spark, files, folder)
    bulk = BulkFiles(files, executor.each, executor.later)
    cuts = [name.rpartition("/")[2] for name in names[5::5]]
    assert bulk.sizes(folder, cuts) == dict.fromkeys(names, 4)
    bulk.remove(names[:11])
    assert set(bulk.sizes(folder)) == {names[11]}
    assert bulk.requests == 6
