from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.core.errors import IcestreamError
from icestream.kernels.signatures import known_digests
from icestream.runtime.spark import machine_code, session, warm_up
from icestream.runtime.work.windows import prefold
from tests.fixtures.parquet_feed import Feed, rows
from tests.oracles.grid import differences

pytestmark = pytest.mark.spark


def test_the_running_session_is_returned_with_the_recommended_settings(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[SparkContext] = []
    monkeypatch.setattr(session, "start_workers", started.append)
    again = ice.local_session(cores=2, memory="1g")
    assert again.sparkContext is spark.sparkContext
    for name, value in ice.settings().items():
        assert spark.conf.get(name) == value
    assert not started


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: object) -> SparkSession:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", gone)
    with pytest.raises(IcestreamError, match=r"install Java 17 or newer.*icestream doctor"):
        ice.local_session()


def test_local_files_have_no_checksums_beside_them(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.json(str(tmp_path / "out"))
    assert not list((tmp_path / "out").glob(".*.crc"))
    assert spark.read.json(str(tmp_path / "out")).count() == 3


def test_settings_are_a_copy() -> None:
    ice.settings()["spark.sql.adaptive.enabled"] = "true"
    assert ice.settings()["spark.sql.adaptive.enabled"] == "false"


def test_warming_up_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    warm_up.kernels()
    assert list(tmp_path.iterdir()) == []


def test_a_warm_machine_starts_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("subprocess.run", lambda command, check: started.append(command))
    monkeypatch.setattr(machine_code, "code_folder", lambda: str(tmp_path))
    monkeypatch.setattr(machine_code, "shipped_folders", lambda: [])
    machine_code.compile_beside()
    assert [command[-1] for command in started] == ["icestream.runtime.spark.warm_up"]
    for digest in known_digests():
        (tmp_path / digest).mkdir()
    machine_code.compile_beside()
    assert len(started) == 1


def test_a_program_may_end_while_its_workers_start(tmp_path: Path) -> None:
    program = tmp_path / "short.py"
    program.write_text(
        """
import time

import icestream as ice
from icestream.runtime.spark import machine_code


def slow(number: int) -> int:
    time.sleep(60)
    return number


machine_code._nothing = slow
context = ice.local_session(cores=1, memory="512m").sparkContext
deadline = time.monotonic() + 60
while not any(
    context.statusTracker().getStageInfo(stage).numActiveTasks
    for stage in context.statusTracker().getActiveStageIds()
):
    assert time.monotonic() < deadline
    time.sleep(0.1)
time.sleep(1)
"""
    )
    ended = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=300
    )
    assert "ERROR" not in ended.stderr


@pytest.mark.parametrize("exchange", ["files", "storage"])
def test_oracle_a_session_with_sparks_own_settings_gives_the_same_rows(
    exchange: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefold, "WORTH_IT", 0.0)
    monkeypatch.setattr(prefold, "LEAST_EVENTS", 0)
    own = spark.newSession()
    for name in ice.settings():
        if own.conf.isModifiable(name):
            own.conf.unset(name)
    own.conf.set("spark.sql.adaptive.enabled", "true")
    own.conf.set("spark.sql.shuffle.partitions", "7")
    times = pa.array([each * 700_000 for each in range(60)]).cast(pa.timestamp("us", "UTC"))
    feed = Feed(own, f"{tmp_path}/in", pa.table({"ts": times, "v": list(range(60))}))
    stream = ice.stream(feed.stream(), "ts").window("6 seconds", "2 seconds")
    writer = stream.groupBy(sf.col("v") % 3).agg(ice.sum("v")).writeStream.memory("64 MB")
    query = (
        writer.options(checkpointLocation=f"{tmp_path}/chk", flush=True, exchange=exchange)
        .trigger(availableNow=True)
        .start(f"{tmp_path}/out")
    )
    query.awaitTermination()
    window = sf.window("ts", "6 seconds", "2 seconds")
    expected = feed.batch().groupBy(window, sf.col("v") % 3).agg(sf.sum("v"))
    found = own.read.parquet(f"{tmp_path}/out")
    assert found.columns == expected.columns
    assert not differences(rows(found, ["(v % 3)"]), rows(expected, ["(v % 3)"]), 1)
