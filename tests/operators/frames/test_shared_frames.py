"""Frames of different reach over one stream, beside each of them alone."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import CheckpointError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.frames import operator, tuples
from icestream.operators.grid import groups
from icestream.plan.grid.parts import parts_of
from icestream.plan.nodes.queries import Plan, View
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.runtime.local import LocalQuery
from icestream.runtime.version import quotas
from icestream.state import snapshot_schedule
from icestream.state.files import LocalFiles
from icestream.state.versions.commits import BASE, VersionStore
from icestream.state.versions.live_segments import live_at
from icestream.testing.sources import (
    SECOND,
    Item,
    Marker,
    StreamShape,
    batches_of,
    generate,
    shapes,
)
from tests.fixtures.plans import open_query, window_plan
from tests.oracles.frames import ObviousFrames, frame_rows
from tests.oracles.grid import differences

INPUTS = pa.schema([("value", pa.float64()), ("whole", pa.int64())])
COUNT = Aggregate("count", None, "events")
TOTAL = Aggregate("sum", "whole", "total")
LEAST = Aggregate("min", "value", "least")
MOST = Aggregate("max", "whole", "most")
LATEST = Aggregate("last", "value", "latest")
SPREAD = Aggregate("stddev_samp", "value", "spread")

BY_KEY = (
    (Frame(range=2 * SECOND), (COUNT, TOTAL)),
    (Frame(range=20 * SECOND), (TOTAL, LEAST, SPREAD)),
    (Frame(range=7 * SECOND, slide=RowsSlide(3)), (MOST, COUNT, LATEST)),
    (Frame(rows=4), (LEAST, TOTAL)),
)
BY_STREAM = (
    (Frame(rows=7, partition="stream"), (MOST, TOTAL)),
    (Frame(rows=40, slide=RowsSlide(9), partition="stream"), (COUNT, LATEST)),
    (Frame(rows=9, slide=2 * SECOND, partition="stream"), (LEAST,)),
    (Frame(range=5 * SECOND, slide=RowsSlide(3), partition="stream"), (SPREAD, COUNT)),
)
RANGES = tuple(Frame(range=reach * SECOND) for reach in (5, 10, 20, 40))

Frames = Sequence[tuple[Frame, tuple[Aggregate, ...]]]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let little data do what much data does: several blocks and chunks, snapshots often."""
    for module in (operator, tuples):
        monkeypatch.setattr(module, "BLOCK_BYTES", 1024)
    monkeypatch.setattr(tuples, "MOST_BLOCK_BYTES", 1024)
    monkeypatch.setattr(groups, "IMAGE_CHUNK", 16)
    monkeypatch.setattr(quotas, "LEAST_QUOTA", 16 * 1024)
    monkeypatch.setattr(snapshot_schedule, "AFTER", 2)
    monkeypatch.setattr(snapshot_schedule, "AT_LATEST", 3)


def plan_of(frames: Frames) -> Plan:
    plan = window_plan(windows=frames[0][0], inputs=INPUTS, aggregates=(COUNT,))
    places = plan.views[0].keys
    views = tuple(View(frame, chosen, (places,), places) for frame, chosen in frames)
    return replace(plan, views=views)


def driven(
    plan: Plan,
    anew: Callable[[], LocalQuery],
    items: Sequence[Item],
    before: Callable[[int], object] = lambda _: None,
) -> list[list[pa.Table]]:
    """Return the rows of each batch, and of the end, of every view."""
    query, found = anew(), []
    for number, item in enumerate(items):
        if isinstance(item, Marker):
            query = anew()
            continue
        before(number)
        deliveries = query.driver.batch(query.next_batch, item)
        found.append([query.rows(deliveries, view) for view in range(len(plan.views))])
    left = query.driver.flush()
    found.append([query.rows(left, view) for view in range(len(plan.views))])
    query.close()
    return found


def check(plan: Plan, found: Sequence[Sequence[pa.Table]], items: Sequence[Item]) -> None:
    keys = len(plan.group_keys)
    for view in range(len(plan.views)):
        oracle = ObviousFrames(replace(plan, views=(plan.views[view],)))
        wanted = [*(oracle.feed(batch) for batch in batches_of(items)), oracle.flush()]
        for number, (tables, rows) in enumerate(zip(found, wanted, strict=True)):
            wrong = differences(frame_rows(tables[view], keys), rows, keys)
            assert not wrong, f"view {view}, batch {number}: {wrong[:3]}"


@given(
    frames=st.sampled_from((BY_KEY, BY_STREAM)),
    chosen=st.sets(st.integers(0, 3), min_size=2),
    shape=shapes(),
    seed=st.integers(0, 2**32 - 1),
    shards=st.sampled_from((1, 3)),
)
@settings(max_examples=25)
def test_oracle_frames_together_equal_frames_alone(
    frames: Frames, chosen: set[int], shape: StreamShape, seed: int, shards: int
) -> None:
    plan = plan_of([frames[place] for place in sorted(chosen)])
    assert len(parts_of(plan)) == 1
    items = generate(plan, shape, seed)
    with tempfile.TemporaryDirectory() as folder:
        anew = partial(open_query, plan, folder, budget=shards << 17, shards=shards)
        check(plan, driven(plan, anew, items), items)


@pytest.mark.parametrize("snapshot", [2, 20])
def test_crash_frames_together_restore_from_the_log(
    snapshot: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_schedule, "AFTER", snapshot)
    monkeypatch.setattr(snapshot_schedule, "AT_LATEST", snapshot + 1)
    plan = plan_of(BY_KEY)
    shape = StreamShape(
        events=300, batches=9, groups=12, disorder=2 * SECOND, duplicates=0.1, nulls=0.1
    )
    items = generate(plan, shape, 4)

    def lose_arenas(number: int) -> None:
        if number % 2:
            for run in (tmp_path / "local").iterdir():
                shutil.rmtree(run / "arenas", ignore_errors=True)

    check(plan, driven(plan, partial(open_query, plan, str(tmp_path)), items, lose_arenas), items)


def test_oracle_frames_together_at_another_number_of_tasks(tmp_path: Path) -> None:
    plan = plan_of(BY_KEY[:3])
    items = generate(plan, StreamShape(events=200, batches=6, groups=20, disorder=SECOND), 5)
    query, found = open_query(plan, str(tmp_path), shards=3), []
    for number, batch in enumerate(batches_of(items)):
        query.rescale(1 + number % 3)
        deliveries = query.driver.batch(query.next_batch, batch)
        found.append([query.rows(deliveries, view) for view in range(3)])
    found.append([query.rows(query.driver.flush(), view) for view in range(3)])
    check(plan, found, items)


def test_bounded_frames_together_log_what_the_longest_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # groups come and go, so that shorter windows would close them and open them again
    monkeypatch.setattr(snapshot_schedule, "AFTER", 16)
    monkeypatch.setattr(snapshot_schedule, "AT_LATEST", 128)
    together = plan_of([(frame, (COUNT, TOTAL)) for frame in RANGES])
    longest = plan_of([(RANGES[-1], (COUNT, TOTAL))])
    shape = StreamShape(events=9000, batches=18, groups=700, span=200 * SECOND, disorder=2 * SECOND)
    items = generate(together, shape, 6)
    logged, live = [], []
    for plan in (longest, together):
        folder = tmp_path / str(len(plan.views))
        query, written, snapshots = open_query(plan, str(folder), shards=1), 0, 0
        for batch in batches_of(items):
            (delivery,) = query.driver.batch(query.next_batch, batch)
            sizes = {True: 0, False: 0}
            for segment in delivery.commit.added:
                sizes[segment.lifetime == BASE] += segment.info.bytes
            written, snapshots = written + sizes[False], snapshots + sizes[True]
        logged.append((written, snapshots))
        store = VersionStore(LocalFiles(), str(folder / "checkpoint"))
        kept = [s for s in live_at(store, delivery.commit.version) if s.lifetime != BASE]
        live.append(sum(segment.info.bytes for segment in kept))
    assert logged[1][0] == logged[0][0]
    assert sum(logged[1]) <= 1.2 * sum(logged[0]), "snapshots have the rows of all frames"
    assert live[1] == live[0], "what the longest window let go is still kept"


def test_bounded_what_enters_is_read_once_for_all_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = StreamShape(events=3000, batches=6, groups=9, span=100 * SECOND)
    read, used = [], []
    for held, frames in ((0, RANGES[-1:]), (0, RANGES), (2, RANGES)):
        monkeypatch.setattr(tuples, "HELD_CHUNKS", held)
        plan = plan_of([(frame, (COUNT, TOTAL)) for frame in frames])
        query = open_query(plan, str(tmp_path / f"{held}-{len(frames)}"), shards=1)
        reported = [
            query.driver.batch(number, batch)[0].progress["icestream"]
            for number, batch in enumerate(batches_of(generate(plan, shape, 8)))
        ]
        read.append(sum(each["blocksRead"] for each in reported))
        used.append(sum(each["blockUses"] for each in reported))
        assert all((each["blocksRead"] > 0) == (each["blockBytesRead"] > 0) for each in reported)
    assert used[0] == read[0]
    # alone: to settle, to enter, to leave; three more frames only read what leaves them
    assert read[1] < 2.2 * read[0]
    assert used[1] > read[1]
    # what just settled enters without being read
    assert used[2] < used[1]
    assert read[2] < read[1]


def test_bounded_frames_together_stay_inside_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (operator, tuples):
        monkeypatch.setattr(module, "BLOCK_BYTES", 4096)
    plan = plan_of([(frame, (COUNT, TOTAL, LEAST)) for frame in RANGES])
    shape = StreamShape(events=6000, batches=4, groups=1500, span=60 * SECOND, disorder=2 * SECOND)
    items = generate(plan, shape, 7)
    quota, most = 256 * 1024, 0
    query, found = open_query(plan, str(tmp_path), budget=quota, shards=1), []
    for batch in batches_of(items):
        (delivery,) = query.driver.batch(query.next_batch, batch)
        facts = delivery.progress["icestream"]
        assert facts["peakMemoryBytes"] <= quota
        most = max(most, facts["partitions"])
        found.append([query.rows([delivery], view) for view in range(4)])
    assert most > 2
    last = query.driver.flush()
    found.append([query.rows(last, view) for view in range(4)])
    assert [sum(t[view].num_rows for t in found) for view in range(4)] == [6000] * 4


def test_a_checkpoint_of_other_frames_is_refused(tmp_path: Path) -> None:
    plan = plan_of(BY_KEY[:2])
    query = open_query(plan, str(tmp_path))
    query.feed(batches_of(generate(plan, StreamShape(), 1))[0])
    for other in (BY_KEY[:3], BY_KEY[:1], (BY_KEY[0], BY_KEY[2]), (BY_KEY[1], BY_KEY[0])):
        with pytest.raises(CheckpointError, match="another query"):
            open_query(plan_of(other), str(tmp_path))
