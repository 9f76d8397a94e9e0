from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from icestream.core.errors import CheckpointError, DefinitionError, InputError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.quotas import LEAST_QUOTA
from icestream.runtime.version.settings import Settings
from icestream.state.versions.commits import COMMITS, RESULTS, SEGMENTS, VersionStore
from icestream.state.versions.live_segments import live_at
from icestream.testing.simulated_disk import SimulatedDisk
from icestream.testing.sources import ABORT, SECOND, StreamShape, drive, generate, restart
from tests.fixtures.plans import QuickFiles, open_query, window_plan
from tests.oracles.grid import rows_of, same_multiset

COUNT = [Aggregate("count", None, "n")]
PLAN = window_plan("4 seconds", "2 seconds", slack=0, aggregates=COUNT)


def events(*seconds: float) -> pa.RecordBatch:
    return pa.record_batch(
        [
            pa.array([int(s * SECOND) for s in seconds], pa.int64()).cast(PLAN.time),
            pa.array([0] * len(seconds), pa.int32()),
            pa.array([1] * len(seconds), pa.int64()),
            pa.array([1.0] * len(seconds)),
        ],
        schema=PLAN.batch_schema,
    )


def test_a_window_comes_out_once_the_watermark_reaches_its_end(tmp_path: Path) -> None:
    # events    0 . 2 . . . . . 8
    # windows  [-2,2) [0,4) [2,6)   closed by 8
    query = open_query(PLAN, str(tmp_path))
    assert query.next_batch == 0
    assert query.feed([[events(0, 2)]]).num_rows == 1
    rows = rows_of(query.feed([[events(8)]]))
    assert sorted((row[0] // SECOND, row[3]) for row in rows) == [(0, 2), (2, 1)]
    assert query.next_batch == 2


def test_a_batch_that_comes_again_is_delivered_again(tmp_path: Path) -> None:
    query = open_query(PLAN, str(tmp_path))
    first = query.feed([[events(0, 9)]])
    again = query.feed([[events(0, 9)]], 0)
    assert same_multiset(rows_of(first), rows_of(again))
    assert first.num_rows > 0
    last = query.driver.last
    assert last is not None
    assert (last.version, last.totals["events"]) == (1, 2)
    reopened = open_query(PLAN, str(tmp_path))
    assert same_multiset(rows_of(reopened.feed([], 0)), rows_of(first))


def test_a_batch_is_delivered_again_also_after_a_flush(tmp_path: Path) -> None:
    query = open_query(PLAN, str(tmp_path))
    first = query.feed([[events(0, 9)]])
    flushed = query.flush()
    assert not same_multiset(rows_of(first), rows_of(flushed))
    assert same_multiset(rows_of(query.feed([[events(0, 9)]], 0)), rows_of(first))
    assert query.next_batch == 1


@pytest.mark.parametrize("number", [0, 5])
def test_a_batch_out_of_turn_is_refused(tmp_path: Path, number: int) -> None:
    query = open_query(PLAN, str(tmp_path))
    for second in range(3):
        query.feed([[events(second)]])
    with pytest.raises(CheckpointError, match=f"Spark sends batch {number}"):
        query.feed([[events(9)]], number)


def test_another_plan_on_the_checkpoint_is_refused(tmp_path: Path) -> None:
    open_query(PLAN, str(tmp_path)).feed([[events(1)]])
    other = window_plan("6 seconds", "2 seconds", slack=0, aggregates=COUNT)
    with pytest.raises(CheckpointError, match="range: the checkpoint has '4 seconds'"):
        open_query(other, str(tmp_path))


def test_a_budget_below_the_buffers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="too small for 4 shards"):
        open_query(PLAN, str(tmp_path), budget=4 * LEAST_QUOTA - 1, shards=4)


def test_two_queries_on_one_checkpoint_do_not_both_commit(tmp_path: Path) -> None:
    files = QuickFiles()
    one = open_query(PLAN, str(tmp_path / "x"), files=files)
    one.feed([[events(0)]])
    two = open_query(PLAN, str(tmp_path / "x"), files=files)
    two.feed([[events(1)]])
    with pytest.raises(CheckpointError, match="another query runs on this checkpoint"):
        one.feed([[events(2)]])


def test_a_batch_that_fails_leaves_the_query_where_it_was(tmp_path: Path) -> None:
    query = open_query(PLAN, str(tmp_path))
    query.feed([[events(0, 1)]])
    broken = events(3).set_column(0, "time", pa.nulls(1, PLAN.time))
    with pytest.raises(InputError):
        query.feed([[events(2)], [broken]])
    assert query.next_batch == 1
    rows = rows_of(query.feed([[events(2)]])) + rows_of(query.flush())
    assert sorted((row[0] // SECOND, row[3]) for row in rows) == [(-2, 2), (0, 3), (2, 1)]


def test_nothing_is_left_behind_that_no_version_names(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    items = generate(PLAN, StreamShape(events=200, batches=30, span=90 * SECOND), 1)
    drive(lambda: open_query(PLAN, str(tmp_path), files=disk), items)
    root = os.path.join(str(tmp_path), "checkpoint")
    store = VersionStore(disk, root)
    last = store.latest()
    assert last is not None
    before = store.load(last.version - 1)
    results = {info.name for commit in (before, last) for info in commit.results}
    assert set(disk.list(f"{root}/{RESULTS}")) == results
    live = {each.info.name for v in (before.version, last.version) for each in live_at(store, v)}
    assert live <= set(disk.list(f"{root}/{SEGMENTS}"))
    added = {each.info.name for each in (*before.added, *last.added)}
    assert set(disk.list(f"{root}/{SEGMENTS}")) <= live | added
    assert not os.listdir(tmp_path / "local")


def test_a_damaged_arena_folder_of_another_run_is_not_trusted(tmp_path: Path) -> None:
    query = open_query(PLAN, str(tmp_path))
    query.feed([[events(0, 1)]])
    (run,) = os.listdir(tmp_path / "local")
    again = open_query(PLAN, str(tmp_path))
    assert run not in os.listdir(tmp_path / "local")
    (delivery,) = again.driver.batch(1, [[events(2)]])
    assert delivery.progress["icestream"]["rebuiltShards"] == [0, 1]
    (delivery,) = again.driver.batch(2, [[events(3)]])
    assert delivery.progress["icestream"]["rebuiltShards"] == []


def test_compressed_segments_hold_the_same(tmp_path: Path) -> None:
    items = generate(PLAN, StreamShape(events=300, batches=6), 2)
    rows = []
    for codec in (None, "lz4", "zstd"):
        folder = tmp_path / str(codec)
        settings = Settings(str(folder / "c"), str(folder / "l"), 16 << 20, codec=codec)
        anew = partial(LocalQuery, PLAN, settings, QuickFiles())
        rows.append(rows_of(drive(anew, restart(items, 2))))
    assert rows[0]
    assert same_multiset(rows[0], rows[1])
    assert same_multiset(rows[0], rows[2])


def test_flush_of_a_query_without_events_emits_nothing(tmp_path: Path) -> None:
    query = open_query(PLAN, str(tmp_path))
    assert query.flush().num_rows == 0
    query.feed([[], [events()]])
    assert query.flush().num_rows == 0
    # the file of the one version, and that of the takeover before it
    assert len(os.listdir(tmp_path / "checkpoint" / COMMITS)) == 2


def test_crash_markers_open_the_query_again(tmp_path: Path) -> None:
    opened: list[LocalQuery] = []

    def open_again() -> LocalQuery:
        opened.append(open_query(PLAN, str(tmp_path)))
        return opened[-1]

    tables = drive(open_again, [[[events(0)]], ABORT, [[events(1)]], ABORT, [[events(9)]]])
    assert len(opened) == 3
    counted = sorted((row[0] // SECOND, row[3]) for row in rows_of(tables))
    assert counted == [(-2, 2), (0, 2), (6, 1), (8, 1)]
