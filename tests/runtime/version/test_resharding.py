"""Changing the number of shards while a query runs: no row changes, for any kind of state."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from icestream.api.events import Events
from icestream.core.arrays import Floats
from icestream.core.errors import CheckpointError, DefinitionError
from icestream.inspect.copying import copy_checkpoint
from icestream.kernels.fold import routes_of
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.lineage import ShardLineage, even_routes, shards_of
from icestream.operators.multi_join import merging
from icestream.plan.balance import hot_shards
from icestream.plan.computation import Computation
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import Source
from icestream.plan.nodes.updates import Updates
from icestream.plan.windows.frame import Frame
from icestream.runtime import elasticity as elasticity_module
from icestream.runtime.elasticity import Elasticity, VersionShards
from icestream.runtime.local import LocalExecutor, LocalQuery
from icestream.runtime.version import resharding, resting, scaling
from icestream.runtime.version.resharding import ShardChange, resharded
from icestream.runtime.version.settings import Settings
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.state import snapshot_schedule
from icestream.state.identities import IdRange
from icestream.state.log.format import SegmentInfo
from icestream.state.versions import live_segments
from icestream.state.versions.commits import (
    BASE,
    SEGMENTS,
    Commit,
    LiveSegment,
    VersionStore,
)
from icestream.state.versions.live_segments import LiveSegments, live_at
from tests.fixtures import dataflow_plans as flows
from tests.fixtures.checkpoints import KINDS, events
from tests.fixtures.plans import INSTANT, QuickFiles, window_plan

BATCHES = 12
#: shards at random versions
COURSE = (8, 32, 5)


def _served_at_once(kind: str) -> Computation:
    """Return a plan whose rows do not depend on the time that a batch has."""
    plan = KINDS[kind].plan()
    return replace(plan, budget=None) if isinstance(plan, Updates) else plan


def _matched(how: str) -> Computation:
    """Return a join of any kind by match: pairs come at once, rows with nulls when certain."""
    schemas = [
        pa.schema([("t" + name, INSTANT), ("k" + name, pa.int64()), ("v" + name, pa.int64())])
        for name in "ab"
    ]
    a, b = (Events(FromSource(schema, source=n), {}) for n, schema in enumerate(schemas))
    joined = a.join(b, on=[("ka", "kb")], how=how, within=2 * flows.SECOND, where="va <= vb")
    sources = tuple(Source(name, 5 * flows.SECOND) for name in "ab")
    return compiled(((joined._node, "append"),), {0: 0, 1: 1}, sources, tuple(schemas), INSTANT)


PLANS: Mapping[str, Callable[[], Computation]] = {
    **{kind: partial(_served_at_once, kind) for kind in KINDS},
    "nested groups": lambda: flows.nested("changes"),
    "nested groups, final": lambda: flows.nested("append"),
    "left join by match": partial(_matched, "left"),
    "full join by match": partial(_matched, "full"),
    "differences": lambda: flows.difference("append"),
    "over": flows.over,
    "over results": flows.over_results,
    "recommender": lambda: flows.recommender("append"),
    "largest of panes": lambda: window_plan(
        "20 seconds", "4 seconds", aggregates=[Aggregate("max", "value", "top")]
    ),
    "rows of the stream": lambda: window_plan(
        windows=Frame(rows=7, partition="stream"), aggregates=[Aggregate("sum", "value", "total")]
    ),
    "largest of ranges": lambda: window_plan(
        windows=Frame(range=6_000_000), aggregates=[Aggregate("max", "value", "top")]
    ),
}


class Run:
    """A query that is fed batch by batch, and restarted at will."""

    def __init__(self, plan: Computation, folder: Path, shards: int = 2) -> None:
        self.plan = plan
        local = os.path.join(folder, "local")
        self.settings = Settings(os.path.join(folder, "checkpoint"), local, 400 << 20, shards)
        self.query = LocalQuery(plan, self.settings, QuickFiles())
        #: progress of the last batch
        self.facts: dict[str, Any] = {}

    @property
    def shards(self) -> int:
        """Return the shards of the last version."""
        assert self.query.driver.last is not None
        return shards_of(self.query.driver.last.routes)

    def feed(self, batch: int) -> list[str]:
        """Return the rows of a batch."""
        count = 30 if self.plan.jobs > 2 else 80
        made = self.query.driver.batch(batch, events(self.plan, batch, count, keys=30))
        self.facts = made[0].progress.get("icestream", self.facts)
        return sorted(map(repr, self.query.rows(made).to_pylist()))

    def restart(self) -> None:
        """Stop the query and start it again."""
        self.query.close()
        self.query = LocalQuery(self.plan, self.settings, QuickFiles())

    def lose_arenas(self) -> None:
        """Remove what tasks keep on local disks, so that shards are rebuilt from the log."""
        arenas = f"{self.query.driver._run}/arenas"
        shutil.rmtree(arenas, ignore_errors=True)
        os.makedirs(arenas, exist_ok=True)

    def rest(self) -> list[str]:
        """Return the rows of a flush, and stop."""
        rows = sorted(map(repr, self.query.flush().to_pylist()))
        self.query.close()
        return rows


@pytest.fixture
def many_snapshots(request: pytest.FixtureRequest) -> Iterator[None]:
    """With a true parameter, take snapshots and merge segments all the time."""
    with ExitStack() as stack:
        if request.param:
            for module, name, value in (
                (snapshot_schedule, "AFTER", 2),
                (snapshot_schedule, "AT_LATEST", 3),
                (merging, "FEW", 1),
            ):
                stack.enter_context(mock.patch.object(module, name, value))
        yield


def undisturbed(plan: Computation, folder: Path) -> list[list[str]]:
    run = Run(plan, folder)
    return [*map(run.feed, range(BATCHES)), run.rest()]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("seed", "many_snapshots"), [(0, False), (1, True)], indirect=["many_snapshots"]
)
@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.usefixtures("many_snapshots")
def test_oracle_any_number_of_shards_at_any_version_changes_no_row(
    tmp_path: Path, kind: str, seed: int
) -> None:
    plan = PLANS[kind]()
    dice = random.Random(f"{kind} {seed}")
    changes = dict(
        zip(sorted(dice.sample(range(1, BATCHES - 1), len(COURSE))), COURSE, strict=True)
    )
    restarts, losses = (set(dice.sample(range(2, BATCHES), 2)) for _ in range(2))
    run = Run(plan, tmp_path / "moved")
    found = []
    wanted = 2
    for batch in range(BATCHES):
        if batch in restarts:
            run.restart()
            run.query.rescale(wanted, shards=wanted)
        if batch in losses:
            run.lose_arenas()
        if batch in changes:
            wanted = changes[batch]
            run.query.rescale(wanted, shards=wanted)
        found.append(run.feed(batch))
    assert run.shards == COURSE[-1]
    found.append(run.rest())
    assert found == undisturbed(plan, tmp_path / "calm")
    assert any(found)


@pytest.mark.sample(2)
@pytest.mark.parametrize("lag", [1, 2, 3])
@pytest.mark.parametrize("kind", PLANS)
def test_oracle_shards_that_catch_up_change_no_row(tmp_path: Path, kind: str, lag: int) -> None:
    """Let new shards be some versions behind when they take over, or read them in rounds."""
    plan = PLANS[kind]()
    dice, calls = random.Random(f"{kind} {lag}"), [0]
    is_ready = ShardChange.is_ready

    def slow(change: ShardChange, last: Commit) -> bool:
        ready = is_ready(change, last)
        calls[0] += 1
        return ready and calls[0] % (lag + 1) == 0

    run = Run(plan, tmp_path / "moved")
    found, lost = [], dice.randrange(2, BATCHES)
    with mock.patch.object(ShardChange, "is_ready", slow):
        for batch in range(BATCHES):
            if batch in (1, 6):
                run.query.rescale(1, shards=7 if batch == 1 else 3)
            if batch == lost:
                run.lose_arenas()
            found.append(run.feed(batch))
    assert run.shards == 3
    found.append(run.rest())
    assert found == undisturbed(plan, tmp_path / "calm")
    assert calls[0] in (0, 2 * lag + 2)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", PLANS)
def test_oracle_a_hot_shard_splits_and_merges(tmp_path: Path, kind: str) -> None:
    """The second of eight shards takes most of the time for a while; the halves merge after it."""
    plan, run = PLANS[kind](), Run(PLANS[kind](), tmp_path / "moved", shards=8)
    driver, first, is_hot = run.query.driver, even_routes(plan.key_groups, 8), True
    executor, elasticity, routes = driver._executor, driver._elasticity, [first]
    really, following = executor.run, elasticity.next

    def followed(*last: Any) -> VersionShards:
        made = following(*last)
        routes.append(made.routes)
        return made

    def timed(tasks: Sequence[ShardTask]) -> list[ShardReport]:
        """Run shards, and report seconds by the key groups that they have."""
        reports = really(tasks)
        for report in reports:
            shard = report.shard % shards_of(routes[-1])
            groups = [group for group, each in enumerate(routes[-1]) if each == shard]
            hot = sum(first[group] == 1 for group in groups) / len(groups)
            busy = 0.38 if is_hot else 0.001
            share = len(groups) / first.count(1)
            report.statistics["seconds"] = share * (hot * busy + (1 - hot) * 0.02)
        return reports

    found, shards = [], []
    with (
        mock.patch.object(LocalExecutor, "parallel", 2),
        mock.patch.object(executor, "run", timed),
        mock.patch.object(elasticity, "next", followed),
        mock.patch.object(hot_shards, "MERGE_AFTER", 2),
        # shards at rest would take no time
        mock.patch.object(resting, "AT_LATEST", 0),
        mock.patch.object(scaling, "_SMOOTHING", 1.0),
        mock.patch.object(elasticity_module, "ENOUGH", 1 << 20),
    ):
        run.query.rescale((2, 2))
        for batch in range(BATCHES):
            is_hot = batch < 6
            found.append(run.feed(batch))
            shards.append(run.shards)
        found.append(run.rest())
    assert shards[:3] == [8, 8, 8]
    assert set(shards) == {8, 9}
    assert "shards 1 and 2 take less than 0.5 times the mean" in run.facts["shardsBecause"]
    assert routes[-1] == first
    assert hot_shards.split(first, 1) in routes
    assert found == undisturbed(plan, tmp_path / "calm")


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", PLANS)
def test_oracle_skew_that_moves_changes_no_row(tmp_path: Path, kind: str, seed: int) -> None:
    """Another range of keys is hot every few batches, and whatever else happens, happens meanwhile.

    The query restarts, loses its arenas, gets other shards by hand, and goes on from a copy.
    """
    plan, dice = PLANS[kind](), random.Random(f"{kind} {seed}")
    restarts, losses, by_hand, copies = (
        set(dice.sample(range(4, BATCHES), count)) for count in (3, 2, 2, 1)
    )
    loads = np.where(np.arange(plan.key_groups) < plan.key_groups // 16, 10, 0.001)
    run, found, uneven = Run(plan, tmp_path / "moved"), [], 0
    with moving_skew(loads):
        run.query.rescale((2, 8))
        for batch in range(BATCHES):
            if batch in copies:
                run.query.close()
                root = f"{tmp_path}/copied/checkpoint"
                copy_checkpoint(run.settings.root, root)
                run = Run(plan, tmp_path / "copied")
            if batch in restarts:
                run.restart()
            if batch in losses:
                run.lose_arenas()
            if batch in by_hand:
                shards = dice.randrange(1, 9)
                run.query.rescale(min(2, shards), shards=shards)
            elif batch - 1 in by_hand or batch in restarts | copies:
                run.query.rescale((2, 8))
            if batch > 3 and dice.random() < 0.5:
                loads[:] = 0.001
                hot = dice.randrange(plan.key_groups)
                loads[hot : hot + max(1, plan.key_groups // dice.choice((4, 16, 64)))] = 10
            found.append(run.feed(batch))
            last = run.query.driver.last
            assert last is not None
            uneven += last.routes != even_routes(plan.key_groups, shards_of(last.routes))
    found.append(run.rest())
    assert found == undisturbed(plan, tmp_path / "calm")
    assert uneven


def test_oracle_parents_whose_sums_have_other_digits_merge(tmp_path: Path) -> None:
    """Most of 32 shards have few events, or none, when they become one."""
    plan = PLANS["over"]()
    run = Run(plan, tmp_path / "moved", shards=32)
    found = []
    for batch in range(BATCHES):
        if batch == 2:
            run.query.rescale(1, shards=1)
        found.append(run.feed(batch))
    assert [*found, run.rest()] == undisturbed(plan, tmp_path / "calm")


@contextmanager
def moving_skew(loads: Floats) -> Iterator[None]:
    """Let each shard take the seconds of its key groups, and shards split and merge at once."""
    really, following = LocalExecutor.run, Elasticity.next
    routes: list[tuple[int, ...]] = []

    def followed(*given: Any) -> VersionShards:
        routes.append((made := following(*given)).routes)
        return made

    def timed(executor: LocalExecutor, tasks: Sequence[ShardTask]) -> list[ShardReport]:
        seconds = np.bincount(routes[-1], loads) / len(loads)
        reports = really(executor, tasks)
        for report in reports:
            report.statistics["seconds"] = float(seconds[report.shard % len(seconds)])
        return reports

    with (
        mock.patch.object(LocalExecutor, "parallel", 2),
        mock.patch.object(LocalExecutor, "run", timed),
        mock.patch.object(Elasticity, "next", followed),
        mock.patch.object(resting, "AT_LATEST", 0),
        mock.patch.object(hot_shards, "SPLIT_AFTER", 1),
        mock.patch.object(hot_shards, "MERGE_AFTER", 1),
        mock.patch.object(scaling, "_SMOOTHING", 1.0),
        mock.patch.object(elasticity_module, "ENOUGH", 1 << 20),
    ):
        yield


@contextmanager
def _preparing_once_told() -> Iterator[Event]:
    """Let the preparation of shards wait for an event, and versions not wait for it."""
    go_on, prepare = Event(), ShardTask.prepare

    def waiting(task: ShardTask) -> str:
        go_on.wait()
        return prepare(task)

    with (
        mock.patch.object(ShardTask, "prepare", waiting),
        mock.patch.object(resharding, "PATIENCE", 0.0),
    ):
        yield go_on


def test_versions_go_on_while_shards_are_prepared(tmp_path: Path) -> None:
    plan = PLANS["groups"]()
    expected = undisturbed(plan, tmp_path / "calm")
    run = Run(plan, tmp_path / "moved")
    with _preparing_once_told() as go_on:
        run.feed(0)
        run.query.rescale(1, shards=5)
        found = [run.feed(batch) for batch in range(1, 6)]
        assert run.shards == 2
        go_on.set()
        run.query.driver._elasticity._resharding._change._thread.join()  # type: ignore[union-attr]
        found += [run.feed(6)]
        run.query.driver._elasticity._resharding._change._thread.join()  # type: ignore[union-attr]
        found += [run.feed(batch) for batch in range(7, BATCHES)]
    assert run.shards == 5
    assert run.query.driver.last is not None
    assert run.query.driver.last.bases.count(2) > 0, "snapshots of the second version are in use"
    assert [*found, run.rest()] == expected[1:]


@pytest.mark.parametrize("kind", ["windows", "groups", "sessions"])
def test_a_split_begins_with_the_snapshots_there_are(tmp_path: Path, kind: str) -> None:
    plan = PLANS[kind]()
    run = Run(plan, tmp_path / "moved")
    found, bases = [], []
    with mock.patch.object(snapshot_schedule, "AFTER", 3):
        for batch in range(BATCHES):
            if batch == 5:
                run.query.rescale(1, shards=8)
            if batch == BATCHES - 2:
                run.lose_arenas()
            found.append(run.feed(batch))
            assert run.query.driver.last is not None
            bases.append(run.query.driver.last.bases)
    assert 0 < min(bases[4]) < 5
    prepared = [each for each in bases[5:] if len(each) == len(bases[0])]
    assert set(prepared) <= {bases[4]}, "no version takes snapshots of all shards"
    assert run.shards == 8
    assert [*found, run.rest()] == undisturbed(plan, tmp_path / "calm")


def test_what_a_preparation_reads_is_retained(tmp_path: Path) -> None:
    plan = PLANS["windows"]()
    run = Run(plan, tmp_path / "moved")
    with (
        _preparing_once_told() as go_on,
        mock.patch.object(live_segments, "MANIFEST_EVERY", 1),
    ):
        found = [run.feed(0)]
        run.query.rescale(1, shards=5)
        found += [run.feed(batch) for batch in range(1, 9)]
        change = run.query.driver._elasticity._resharding._change
        assert change is not None
        go_on.set()
        change._thread.join()  # type: ignore[union-attr]
        assert change.failure is None
        found += [run.feed(batch) for batch in range(9, BATCHES)]
    assert [*found, run.rest()] == undisturbed(plan, tmp_path / "calm")


def test_crash_a_preparation_that_fails_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = PLANS["windows"]()
    expected = undisturbed(plan, tmp_path / "calm")
    run = Run(plan, tmp_path / "failed")
    with mock.patch.object(ShardTask, "prepare", side_effect=OSError("disk full")) as prepare:
        found = [run.feed(0)]
        run.query.rescale(1, shards=5)
        found += [run.feed(batch) for batch in range(1, BATCHES)]
    assert prepare.called
    assert run.shards == 5
    assert run.facts["shardsNotPrepared"] == "OSError: disk full"
    assert "disk full" in caplog.text
    assert [*found, run.rest()] == expected


@pytest.mark.sample(1)
@pytest.mark.parametrize("late", [False, True], ids=["before its commit", "after its commit"])
@pytest.mark.parametrize("kind", ["windows", "groups", "ranges", "joins", "update windows"])
def test_crash_around_a_change_of_shards(tmp_path: Path, kind: str, late: bool) -> None:
    plan = PLANS[kind]()
    expected = undisturbed(plan, tmp_path / "calm")
    create = VersionStore.create

    def failing(store: VersionStore, commit: Commit) -> None:
        if late:
            create(store, commit)
        msg = "power failure"
        raise OSError(msg)

    crash = mock.patch.object(VersionStore, "create", failing)
    run = Run(plan, tmp_path / "crashed")
    found = []
    for batch in range(BATCHES):
        if batch in (4, 9):
            # at 4 and 9 snapshots are taken, at 5 and 10 others go on from them
            run.query.rescale(1, shards=7 if batch == 4 else 3)
        if batch in (4, 5, 10):
            with crash, pytest.raises(OSError, match="power"):
                run.feed(batch)
            run.restart()
            run.query.rescale(1, shards=7 if batch < 9 else 3)
        found.append(run.feed(batch))
    assert run.shards == 3
    found.append(run.rest())
    assert found == expected


def test_shards_are_where_a_checkpoint_starts(tmp_path: Path) -> None:
    plan = PLANS["groups"]()
    run = Run(plan, tmp_path, shards=2)
    run.feed(0)
    run.query.rescale(6)
    run.feed(1), run.feed(2)
    assert run.shards == 6
    run.restart()
    run.feed(3), run.feed(4)
    assert run.shards == 6, "the program says what it said before"
    run.settings = replace(run.settings, shards=3)
    run.restart()
    run.feed(5), run.feed(6)
    assert run.shards == 3, "the program says something else"
    run.query.rescale((1, 2))
    run.feed(7), run.feed(8)
    assert run.shards == 3, "fewer tasks need no fewer shards"


def test_shards_that_cannot_be_are_refused(tmp_path: Path) -> None:
    run = Run(replace(flows.running_aggregate(), key_groups=16), tmp_path)
    run.feed(0)
    with pytest.raises(DefinitionError, match="16 shards or fewer, not 17"):
        run.query.rescale(17)
    with pytest.raises(DefinitionError, match="a query with 4 shards runs in 1 to 4 tasks"):
        run.query.rescale(5, shards=4)
    settings = replace(run.settings, budget=8 << 20, local=f"{tmp_path}/other")
    small = LocalQuery(run.plan, replace(settings, root=f"{tmp_path}/small"), QuickFiles())
    with pytest.raises(DefinitionError, match="too small"):
        small.rescale(16)
    run.feed(1), run.feed(2)
    assert run.shards == 2


def test_nested_groups_of_an_earlier_release_keep_their_shards(tmp_path: Path) -> None:
    old = replace(flows.nested("changes"), inner_ids=False, key_groups=256)
    expected = undisturbed(old, tmp_path / "calm")
    run = Run(old, tmp_path / "old")
    run.feed(0)
    run.plan = flows.nested("changes")
    run.restart()
    with pytest.raises(CheckpointError, match="an earlier release began it"):
        run.query.rescale(4)
    assert [run.feed(batch) for batch in range(1, BATCHES)] == expected[1:-1]


@pytest.mark.parametrize("groups", [8, 100, 256, 4096])
@pytest.mark.parametrize("shards", [1, 3, 8])
def test_oracle_ids_of_key_groups_beside_the_routes(groups: int, shards: int) -> None:
    dice = np.random.default_rng(groups)
    edges = [IdRange.of_key_groups(g, g + 1, groups).low for g in range(groups)]
    ids = dice.integers(0, 2**64, 2000, dtype=np.uint64)
    ids = np.concatenate([ids, np.array([*edges, *(each - 1 for each in edges[1:])], np.uint64)])
    routes, found = even_routes(groups, shards), np.empty(len(ids), dtype=np.int64)
    routes_of(ids, groups, np.array(routes), found, np.zeros(groups, dtype=np.int64))
    for shard in range(shards):
        lineage = ShardLineage.of(routes, 2 * shards + shard)
        assert (lineage.component, lineage.shards(routes)) == (2, [2 * shards + shard])
        own = IdRange.of_key_groups(lineage.groups.start, lineage.groups.stop, groups)
        assert (own.holds(ids) == (found == shard)).all()
        parts = lineage.shards(even_routes(groups, 5))
        assert parts == sorted({10 + even_routes(groups, 5)[g] for g in lineage.groups})


def segment(shard: int, ordinal: int, lifetime: str, version: int = 1) -> LiveSegment:
    info = SegmentInfo(ordinal, f"{ordinal:010d}-{0:016x}.seg", 10, 1, 2**62, 0)
    return LiveSegment(shard, version, lifetime, info)


def commit(version: int, shards: int, **rest: Any) -> Commit:
    placement = {"tasks": [0] * shards, "loads": [1.0] * shards, "parallelism": 1}
    parts = {"arenas": ("a",) * shards, "bases": (version,) * shards, **rest}
    routes = even_routes(16, shards)
    return Commit(version, 0, routes=routes, decisions={"placement": placement}, **parts)


def test_a_shared_segment_goes_with_its_last_shard() -> None:
    live = LiveSegments()
    listed = (segment(0, 5, "rows"), segment(1, 6, "rows"), segment(1, 7, BASE))
    live.advance(commit(1, 2, added=listed))
    before, split = resharded(commit(1, 2), live, even_routes(16, 4))

    def places(of: LiveSegments) -> list[tuple[int, int]]:
        return [(each.shard, each.info.ordinal) for each in of.segments()]

    assert places(split) == [(0, 5), (1, 5), (2, 6), (2, 7), (3, 6), (3, 7)]
    assert all(each.shared for each in split.segments())
    _, merged = resharded(replace(before, version=2), split, (0,) * 16)
    assert places(merged) == [(0, 5), (0, 6), (0, 7)]
    first = commit(2, 4, bases=(1, 1, 2, 1), released=((0, 5), (2, 6)))
    assert not split.advance(first)
    assert places(split) == [(1, 5), (3, 6), (3, 7)]
    ended = split.advance(commit(3, 4, released=((1, 5), (3, 6))))
    assert sorted(each.path for each in ended) == [
        f"{SEGMENTS}/{each.info.name}" for each in listed
    ]
    assert not len(split)


def test_no_file_is_written_again_and_none_is_left_behind(tmp_path: Path) -> None:
    run = Run(PLANS["groups"](), tmp_path)
    for batch in range(6):
        run.feed(batch)
    store, folder = run.query.driver.store, f"{run.settings.root}/{SEGMENTS}"
    run.query.rescale(8)
    run.feed(6)
    before = set(os.listdir(folder))
    run.feed(7)
    last = run.query.driver.last
    assert last is not None
    fresh = {each.info.name for each in last.added}
    assert set(os.listdir(folder)) - fresh <= before
    for batch in range(8, 24):
        run.feed(batch)
    last = run.query.driver.last
    assert last is not None
    kept = range(last.version - run.settings.keep + 1, last.version + 1)
    named = {each.info.name for v in kept for each in live_at(store, v)}
    named |= {each.info.name for v in kept for each in store.load(v).added}
    assert set(os.listdir(folder)) <= named


def test_a_table_of_empty_parents_is_empty(tmp_path: Path) -> None:
    run = Run(PLANS["rows"](), tmp_path, shards=16)
    empty = [[pa.RecordBatch.from_pylist([], schema=run.plan.batch_schema)]]
    run.query.feed(empty)
    run.query.rescale(1, shards=1)
    run.query.feed(empty)
    run.query.feed(empty)
    assert run.shards == 1
    assert run.feed(3)
