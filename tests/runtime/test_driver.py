from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from icestream.core.errors import CheckpointError, DefinitionError, InputError
from icestream.plan.nodes.queries import Plan
from icestream.runtime.driver import Delivery
from icestream.runtime.local import LocalQuery, read_rows
from icestream.runtime.version.quotas import LEAST_QUOTA
from icestream.runtime.version.settings import Settings
from icestream.state.versions.commits import COMMITS, RESULTS, SEGMENTS, VersionStore
from icestream.state.versions.live_segments import live_at
from icestream.testing.simulated_disk import SimulatedDisk
from tests.suites.crash_runs import ROOT, Process, Script, staged

SCRIPT = Script(batches=8)


def query(disk: SimulatedDisk, folder: Path, script: Script = SCRIPT) -> LocalQuery:
    return LocalQuery(script.plan, script.settings(str(folder)), disk)


def texts(disk: SimulatedDisk, deliveries: list[Delivery]) -> list[str]:
    paths = [path for delivery in deliveries for path in delivery.results]
    return [repr(row) for path in paths for t in read_rows(disk, path) for row in t.to_pylist()]


def without_times(events: pa.RecordBatch) -> pa.RecordBatch:
    time = events.schema.field(0)
    return events.set_column(0, time, pa.nulls(events.num_rows, time.type))


def test_the_plan_of_a_checkpoint_is_read_once_at_a_start(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    class Noting(SimulatedDisk):
        def read(self, path: str) -> bytes:
            asked.append(("read", path))
            return super().read(path)

        def put(self, path: str, data: bytes) -> bool:
            asked.append(("put", path))
            return super().put(path, data)

    disk, plan = Noting(), f"{ROOT}/plan.json"
    query(disk, tmp_path / "a").driver.batch(0, SCRIPT.inputs[0])
    assert [each for each in asked if each[1] == plan] == [("put", plan)]
    asked.clear()
    query(disk, tmp_path / "b")
    assert [each for each in asked if each[1] == plan] == [("read", plan)]


def test_a_batch_that_comes_again_is_delivered_again(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    driver = query(disk, tmp_path / "a").driver
    for number in range(4):
        first = driver.batch(number, SCRIPT.inputs[number])
        again = driver.batch(number, SCRIPT.inputs[number])
        assert [d.again for d in (*first, *again)] == [False, True]
        assert again[0].results == first[0].results
        assert again[0].late == first[0].late
    reopened = query(disk, tmp_path / "b").driver
    assert reopened.batch(3, [])[0].results == first[0].results
    assert reopened.last is not None
    assert reopened.last.version == 4
    assert reopened.last.totals["events"] == 4 * SCRIPT.events


def test_a_flush_is_delivered_again_until_the_next_batch(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    driver = query(disk, tmp_path / "a").driver
    for number in range(3):
        last = driver.batch(number, SCRIPT.inputs[number])
    flushed = driver.flush()
    assert texts(disk, flushed)
    reopened = query(disk, tmp_path / "b").driver
    assert reopened.flush()[0].results == flushed[0].results
    assert reopened.batch(2, SCRIPT.inputs[2])[0].results == last[0].results
    assert reopened.flush()[0].again
    assert not reopened.batch(3, SCRIPT.inputs[3])[0].again
    assert not any(delivery.again for delivery in reopened.flush())


def test_a_flush_without_an_event_does_nothing(tmp_path: Path) -> None:
    driver = query(SimulatedDisk(), tmp_path).driver
    assert driver.flush() == []
    driver.batch(0, [[]])
    assert driver.flush() == []


@pytest.mark.parametrize("number", [0, 1, 4, 7])
def test_a_batch_out_of_turn_names_both_checkpoints(tmp_path: Path, number: int) -> None:
    driver = query(SimulatedDisk(), tmp_path).driver
    for done in range(3):
        driver.batch(done, SCRIPT.inputs[done])
    with pytest.raises(CheckpointError, match=rf"up to 2, but Spark sends batch {number}"):
        driver.batch(number, SCRIPT.inputs[number])
    assert not driver.batch(3, SCRIPT.inputs[3])[0].again


def test_a_last_commit_that_was_deleted_is_named(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    for life in range(2):
        driver = query(disk, tmp_path / str(life)).driver
        driver.batch(2 * life, SCRIPT.inputs[2 * life])
        driver.batch(2 * life + 1, SCRIPT.inputs[2 * life + 1])
    gone = driver.store.path(4)
    assert gone == f"{ROOT}/{COMMITS}/000000000004-00000002.json"
    disk.unlink(gone)
    driver = query(disk, tmp_path / "again").driver
    with pytest.raises(CheckpointError, match=rf"the commit {gone} was removed before this start"):
        driver.batch(4, SCRIPT.inputs[4])


def test_a_lost_checkpoint_is_noticed_at_the_first_batch(tmp_path: Path) -> None:
    driver = query(SimulatedDisk(), tmp_path).driver
    with pytest.raises(CheckpointError, match="no batch, but Spark sends batch 5"):
        driver.batch(5, SCRIPT.inputs[5])


def test_nothing_is_left_behind_that_no_version_names(tmp_path: Path) -> None:
    with staged():
        script = Script(batches=72, events=8)
        disk = SimulatedDisk()
        process = Process(script, disk, str(tmp_path))
        most = 0
        for action in range(len(script.actions)):
            process.act(action)
            store = VersionStore(disk, ROOT)
            version = action + 1
            kept = range(max(1, version - 1), version + 1)
            commits = [store.load(number) for number in kept]
            named = {each.info.name for number in kept for each in live_at(store, number)}
            named |= {each.info.name for commit in commits for each in commit.added}
            assert set(disk.list(f"{ROOT}/{SEGMENTS}")) == named
            rows = {each.name for commit in commits for each in (*commit.results, *commit.late)}
            assert set(disk.list(f"{ROOT}/{RESULTS}")) == rows
            most = max(most, len(disk.list(f"{ROOT}/{COMMITS}")))
            arenas = os.path.join(tmp_path, os.listdir(tmp_path)[0], "arenas")
            assert sorted(os.listdir(arenas)) == sorted(commits[-1].arenas)
    # beside the commits there is the takeover
    assert most <= 64 + 2 + 1


def test_what_a_failed_attempt_left_is_removed_before_the_next(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    opened = query(disk, tmp_path)
    opened.feed(SCRIPT.inputs[0])
    disk.put(f"{ROOT}/{SEGMENTS}/0000000009-0000000000000000.seg", b"half a segment")
    disk.put(f"{ROOT}/{RESULTS}/000000000002-0-0000000000000000.rows", b"half a result")
    broken = [[batch.slice(0, 5).drop_columns(["x1"]) for batch in SCRIPT.inputs[1][0]]]
    with pytest.raises(KeyError):
        opened.feed(broken)
    opened.feed(SCRIPT.inputs[1])
    assert not any("-0000000000000000" in path for path in disk.files())


def test_an_error_in_a_batch_leaves_the_version_before(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    opened, calm = query(disk, tmp_path / "a"), query(SimulatedDisk(), tmp_path / "b")
    for number in range(4):
        batch = SCRIPT.inputs[number]
        broken = [[without_times(events) for events in split] for split in batch]
        with pytest.raises(InputError, match="have no time"):
            opened.feed(broken)
        assert sorted(map(repr, opened.feed(batch).to_pylist())) == sorted(
            map(repr, calm.feed(batch).to_pylist())
        )


def test_another_plan_is_refused_naming_what_differs(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    query(disk, tmp_path)
    assert isinstance(SCRIPT.plan, Plan)
    settings = SCRIPT.settings(str(tmp_path))
    LocalQuery(replace(SCRIPT.plan, late="drop"), settings, disk)  # that changes no state
    # a checkpoint keeps the key groups it began with
    LocalQuery(replace(SCRIPT.plan, key_groups=64), settings, disk)
    source = replace(SCRIPT.plan.sources[0], slack=SCRIPT.plan.sources[0].slack + 1)
    other = replace(SCRIPT.plan, sources=(source, *SCRIPT.plan.sources[1:]))
    with pytest.raises(CheckpointError, match="slack"):
        LocalQuery(other, SCRIPT.settings(str(tmp_path)), disk)


def test_more_shards_than_key_groups_are_refused(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    with pytest.raises(DefinitionError, match="8 shards or fewer, not 9"):
        query(disk, tmp_path, Script(batches=8, shards=9, budget=16 << 20))
    # not even its plan is left
    assert disk.list(ROOT) == []


def test_a_second_query_on_the_same_checkpoint_is_stopped(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    first, second = query(disk, tmp_path / "a"), query(disk, tmp_path / "b")
    with pytest.raises(CheckpointError, match="another query runs on this checkpoint"):
        first.feed(SCRIPT.inputs[0])
    second.feed(SCRIPT.inputs[0])


def test_a_query_of_another_plan_is_refused_before_it_owns_the_checkpoint(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    first = query(disk, tmp_path / "a")
    source = SCRIPT.plan.sources[0]
    other = replace(SCRIPT.plan, sources=(replace(source, slack=source.slack + 1_000_000),))
    with pytest.raises(CheckpointError, match=r"belongs to another query\. .*slack"):
        LocalQuery(other, SCRIPT.settings(str(tmp_path / "b")), disk)
    assert first.feed(SCRIPT.inputs[0]) is not None


def test_settings_that_cannot_work_say_what_would() -> None:
    with pytest.raises(DefinitionError, match="at least one shard"):
        Settings("root", "local", budget=1 << 20, shards=0)
    with pytest.raises(DefinitionError, match=r"at least 3\.0 MB"):
        Settings("root", "local", budget=3 * LEAST_QUOTA - 1, shards=3)


def test_progress_reports_rows_watermark_and_memory(tmp_path: Path) -> None:
    driver = query(SimulatedDisk(), tmp_path).driver
    (delivery,) = driver.batch(0, SCRIPT.inputs[0])
    progress = delivery.progress
    reported = progress["icestream"]
    assert progress["numInputRows"] == SCRIPT.events
    assert reported["watermark"] == delivery.commit.watermark
    assert (
        0 < reported["stateMemoryBytes"] <= reported["peakMemoryBytes"] <= reported["budgetBytes"]
    )
    assert reported["logBytes"] == sum(each.info.bytes for each in delivery.commit.added)
    assert reported["rebuiltShards"] == []
    assert {"ingest", "component", "commit", "tidy", "triggerExecution"} <= set(
        progress["durationMs"]
    )
