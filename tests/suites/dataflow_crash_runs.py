"""Small dataflows of two components for crash runs: killed at any step, with flipped bits.

Idea: `crash_runs` and `bit_flips` do this to any query; these two have logs with everything that
dataflows write: rows that expire and rows that do not, in several groupings, timers, snapshots,
late events; and the generations of joins that spill, with their cuts, clean-ups and deletions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.events.dataflow import Dataflow
from icestream.runtime.local import Splits
from icestream.runtime.work.dataflow import spilling
from icestream.runtime.work.dataflow import work as dataflow_work
from icestream.state.versions.commits import BASE, PLAN, RESULTS, SEGMENTS, VersionStore
from icestream.state.versions.live_segments import live_at
from tests.faults.bit_flips import BitFlips
from tests.fixtures.dataflow_plans import RATINGS, SECOND, PlanStream, dataflow
from tests.fixtures.join_plans import SCHEMAS, batch_of, deferred, sources
from tests.suites.crash_runs import ROOT, Script


def popular_items() -> Dataflow:
    """Keep the best recently rated items among those with the same number of ratings."""
    ratings = PlanStream.of(RATINGS)
    count = (Aggregate("count", None, "ratings"), Aggregate("sum", "rating", "total"))

    def counted(everything: PlanStream, recent: PlanStream) -> PlanStream:
        counts = everything.agg(*count)
        return counts.join(recent.select("item AS other", "user"), hidden=["other"])

    by_item = ratings.forever().apply(["item"], counted, ratings.window(2 * SECOND))
    best = by_item.apply(["ratings"], lambda group: group.top(3, "total"))
    return replace(dataflow(best, "append", slack=SECOND), late="keep", key_groups=8)


@dataclass(frozen=True)
class DataflowScript(Script):
    """The dataflow and its input."""

    @cached_property
    def plan(self) -> Dataflow:
        """Return the query."""
        return popular_items()

    def events_in(self, batch: int, split: int) -> pa.RecordBatch:
        """Return ratings, some of them late."""
        dice = np.random.default_rng([self.seed, batch, split])
        count = self.events // 2
        start = batch + (8 if batch >= self.batches // 2 else 0)
        times = start * SECOND + dice.integers(-SECOND, SECOND, count)
        times[: count // 8] -= 9 * SECOND
        return pa.record_batch(
            [
                pa.array(times).cast(self.plan.time),
                pa.array(np.zeros(count, dtype=np.int32)),
                pa.array(dice.integers(0, self.keys, count)),
                pa.array(dice.integers(0, self.keys // 2, count)),
                pa.array(dice.integers(1, 9, count) / 2),
            ],
            schema=self.plan.batch_schema,
        )


@dataclass(frozen=True)
class JoinScript(Script):
    """A tree of two joins that spills, cleans up half-way, continues, and cleans up at the end."""

    @cached_property
    def plan(self) -> Dataflow:
        """Return the query."""
        a, b, c = sources(None, 3)
        inner = deferred(a, b, on=[("a1", "b1")])
        rows = deferred(inner, c, on=[("b2", "c1")])
        return dataflow(rows, "append", SCHEMAS[:3], slack=SECOND)

    @cached_property
    def inputs(self) -> tuple[Splits, ...]:
        """Return the batches, a split for each stream."""
        return tuple(map(self._batch, range(self.batches)))

    def _batch(self, batch: int) -> Splits:
        dice = np.random.default_rng([self.seed, batch])
        start = batch + (8 if batch >= self.batches // 2 else 0)
        times = pa.array(start * SECOND + np.arange(self.events))
        tables = [
            pa.table([*dice.integers(0, self.keys, (2, self.events)), times], schema=schema)
            for schema in SCHEMAS[:3]
        ]
        return batch_of(self.plan, [times] * 3, tables)


@contextmanager
def spills_by_version() -> Iterator[None]:
    """Spill partitions of joins that depend only on the version."""

    def by_version(*args: Any, **kwargs: Any) -> spilling.JoinDecisions:
        news = spilling.decided(*args, **kwargs)
        dice = np.random.default_rng(args[4])
        leaving = {
            join: tuple(np.flatnonzero(dice.random(256) < dice.choice([0.3, 0.7])).tolist())
            for join in news.results
        }
        return replace(news, spill=leaving)

    with mock.patch.object(dataflow_work, "decided", by_version):
        yield


class DataflowBitFlips(BitFlips):
    """Flips bits of the files of a dataflow."""

    def durable_files(self) -> dict[str, str]:
        """Return the path of one file of each durable kind, all of which a restart reads."""
        store = VersionStore(self._disk, ROOT)
        last = store.load(self.stopped)
        base = max(1, last.bases[0])
        segments = {
            "snapshot" if each.lifetime == BASE else each.lifetime: each
            for each in live_at(store, last.version)
            if each.version >= base
        }
        return {
            "plan": f"{ROOT}/{PLAN}",
            "last commit": store.path(last.version),
            "commit of a snapshot": store.path(base),
            **{kind: f"{ROOT}/{SEGMENTS}/{each.info.name}" for kind, each in segments.items()},
            "results": f"{ROOT}/{RESULTS}/{last.results[0].name}",
            "late events": f"{ROOT}/{RESULTS}/{last.late[0].name}",
        }
