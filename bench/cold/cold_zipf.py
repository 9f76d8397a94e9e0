"""Groups of very different popularity: the same query with all memory and with a fifth of it.

Idea: events access groups by Zipf's law. *Fixed* groups have a running count and sum; *profiles*
    also
have a histogram; *growing* groups store every event, on one side of a join whose other side are
requests that ask whether a group has seen a value. One event in a hundred is a request, or more of
them. Two queries, with and without enough memory, process every batch in turn, so that both see the
same machine.

Invariants:
1. Groups are drawn by Zipf's law, and drift shifts popularity (`test_groups_follow_zipfs_law`,
   `test_drift_moves_popularity_on`).
2. Results are those of numpy, row by row, whatever the memory
   (`test_oracle_answers_are_exact_in_any_memory`).

References: ICE, section VIII-A (20M events over 300K groups, by a Zipf distribution).
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ints
from icestream.operators.dataflow.stores import ColdOptions
from icestream.operators.process.declarations import Declared, ValueState
from icestream.operators.process.operator import UserDefined
from icestream.operators.process.vectorised import GROUP, GroupedBatch, State, VectorisedProcessor
from icestream.plan.events.dataflow import Dataflow
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings
from icestream.state.groups.cold.manager import Policy
from icestream.state.groups.options import StoreOptions
from tests.fixtures.dataflow_plans import PlanStream, dataflow

#: more bytes than any run here needs
UNLIMITED = 8 << 30
#: values of an event, from 0
VALUES = 1_000
BINS = 96
#: spreads neighbouring ranks over all groups
STRIDE = 1_000_003
#: event time between two events, microseconds
TICK = 10
SECOND = 1_000_000

COLUMNS = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("asks", pa.bool_())])


@dataclass(frozen=True)
class Accesses:
    """A stream whose groups are drawn by Zipf's law."""

    events: int
    groups: int
    #: events of a batch
    batch: int
    #: the exponent: the group of rank r is accessed 1 / r**skew as often as the first
    skew: float = 1.0
    #: ranks by which popularity has shifted at the end, as a share of the groups
    drift: float = 0.0
    #: one in this many events is a request
    asking: int = 100
    seed: int = 1

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return -(-self.events // self.batch)

    def columns(self, number: int) -> tuple[Ints, Ints, Ints, npt.NDArray[np.bool_]]:
        """Return time, key, value and whether it is a request, for the events of a batch."""
        place = np.arange(number * self.batch, min((number + 1) * self.batch, self.events))
        dice = np.random.default_rng([self.seed, number])
        asks = place % self.asking == self.asking - 1
        chance = dice.random(len(place))
        rank = np.minimum(np.searchsorted(self._shares, chance, side="right"), self.groups - 1)
        moved = (place * self.drift * self.groups / self.events).astype(np.int64)
        key = (rank + moved) % self.groups * STRIDE % self.groups
        return place * TICK, key, dice.integers(0, VALUES, len(place)), asks

    def record_batch(self, number: int, schema: pa.Schema) -> pa.RecordBatch:
        """Return a batch as ingest reads it."""
        return as_batch(*self.columns(number), schema)

    @property
    def _shares(self) -> npt.NDArray[np.float64]:
        return _shares(self.groups, self.skew)


_KNOWN: dict[tuple[int, float], npt.NDArray[np.float64]] = {}


def _shares(groups: int, skew: float) -> npt.NDArray[np.float64]:
    """Return the share of all accesses that the ranks up to each one have."""
    if (groups, skew) not in _KNOWN:
        weights = np.arange(1, groups + 1, dtype=np.float64) ** -skew
        _KNOWN[groups, skew] = np.cumsum(weights) / weights.sum()
    return _KNOWN[groups, skew]


def as_batch(
    times: Ints, key: Ints, value: Ints, asks: npt.NDArray[np.bool_], schema: pa.Schema
) -> pa.RecordBatch:
    """Combine columns as ingest reads them."""
    arrays = [
        pa.array(times).cast(schema.types[0]),
        pa.array(np.zeros(len(times), dtype=np.int32)),
        pa.array(key),
        pa.array(value),
        pa.array(asks),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# -- queries -------------------------------------------------------------------------------


class TotalsProcessor(VectorisedProcessor):
    """Count and add up the values of a group; answer requests."""

    state: ClassVar[Mapping[str, Declared]] = {"totals": ValueState("n long, total long")}
    output = "key long, n long, total long"

    def process(self, batch: GroupedBatch, state: State) -> Any:
        """Fold the events of each group."""
        asks = batch.column("asks")
        news = batch.reduce(np.add, (~asks).astype(np.int64))
        old = state.totals.numpy()
        n = old["n"] + news
        total = old["total"] + batch.reduce(np.add, np.where(asks, 0, batch.column("value")))
        state.totals.set([n, total], mask=news > 0)
        return told(batch, n, total, len(batch.starts) - 1)


class Profiles(VectorisedProcessor):
    """Count values in bins, as a profile of a group; answer requests with its sums."""

    state: ClassVar[Mapping[str, Declared]] = {
        "bins": ValueState(", ".join(f"b{number} long" for number in range(BINS)))
    }
    output = "key long, n long, total long"

    def process(self, batch: GroupedBatch, state: State) -> Any:
        """Fold the events of each group."""
        asks, value = batch.column("asks"), batch.column("value")
        groups = len(batch)
        cells = batch.group * BINS + value % BINS
        news = np.bincount(cells[~asks], minlength=groups * BINS).reshape(groups, BINS)
        old = state.bins.numpy()
        bins = np.stack([old[f"b{number}"] for number in range(BINS)], axis=1) + news
        state.bins.set(list(bins.T), mask=news.sum(axis=1) > 0)
        weighted = bins @ np.arange(BINS)
        return told(batch, bins.sum(axis=1), weighted, groups)


def told(batch: GroupedBatch, n: Ints, total: Ints, groups: int) -> dict[str, Any] | None:
    """Return the result for each group with a request."""
    asked = np.flatnonzero(np.bincount(batch.group, batch.column("asks"), groups) > 0)
    if not len(asked):
        return None
    keys = batch.keys.column("key").to_numpy()
    return {"key": keys[asked], "n": n[asked], "total": total[asked], GROUP: asked}


#: user code by kind of group
PROCESSORS: dict[str, type[VectorisedProcessor]] = {"fixed": TotalsProcessor, "profiles": Profiles}
SEEN = "value = wanted"


def flow_of(kind: str, cold: ColdOptions | None = None) -> Dataflow:
    """Return the query for a kind of group."""
    events = PlanStream.of(COLUMNS)
    if kind == "growing":
        kept = events.where("NOT asks").select("key", "value").forever()
        asking = events.where("asks").select("key", "value AS wanted")
        made = kept.apply(("key",), _joined, asking)
    else:
        keys = pa.schema([COLUMNS.field("key")])
        operator = UserDefined(PROCESSORS[kind](), keys, COLUMNS)
        made = events.apply(("key",), lambda group: group.through(operator, kind, grows=True))
    return replace(dataflow(made, columns=(COLUMNS,), slack=0), cold=cold or ColdOptions())


def _joined(kept: PlanStream, asking: PlanStream) -> PlanStream:
    asking = asking.select("key AS asked", "wanted")
    return kept.join(asking, where=SEEN, hidden=("asked",))


# -- runs ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """A stream, a query, and how much memory it has."""

    kind: str
    events: int
    groups: int
    batch: int
    #: bytes
    budget: int = UNLIMITED
    drift: float = 0.0
    classifier: str = "clock"
    durability: str = "log"
    shards: int = 1
    #: one in this many events is a request
    asking: int = 100

    @property
    def accesses(self) -> Accesses:
        """The events."""
        return Accesses(self.events, self.groups, self.batch, 1.0, self.drift, self.asking)

    @property
    def flow(self) -> Dataflow:
        """The query."""
        store = StoreOptions(durability=self.durability)  # type: ignore[arg-type]
        return flow_of(self.kind, ColdOptions(store, Policy(classifier=self.classifier)))


class ZipfRun:
    """A query that is fed batch by batch, and its measurements."""

    def __init__(self, flow: Dataflow, budget: int, folder: str, shards: int = 1) -> None:
        """Open an empty query."""
        shutil.rmtree(folder, ignore_errors=True)
        self.flow = flow
        settings = Settings(
            os.path.join(folder, "checkpoint"), os.path.join(folder, "local"), budget, shards=shards
        )
        self._folder = folder
        self._query = LocalQuery(flow, settings)
        #: events of each batch, and its seconds by the clock and of the processor
        self.events: list[int] = []
        self.wall: list[float] = []
        self.cpu: list[float] = []
        #: bytes of state in memory after each batch, and extents read from the log for it
        self.held: list[int] = []
        self.reads: list[int] = []
        self.peak = self.log_bytes = 0
        #: cold state in the last report
        self.cold: dict[str, int] = {}

    def feed(self, batch: pa.RecordBatch) -> pa.Table:
        """Process a batch; return its results."""
        wall, cpu = time.perf_counter(), time.process_time()
        deliveries = self._query.driver.batch(len(self.wall), [[batch]])
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)
        self.events.append(batch.num_rows)
        for delivery in deliveries:
            report = delivery.progress["icestream"]
            before = self.cold.get("extents_read", 0)
            self.cold = report["coldState"]
            self.reads.append(self.cold["extents_read"] - before)
            self.held.append(self.state_bytes)
            self.peak = max(self.peak, report["peakMemoryBytes"])
            self.log_bytes = report["logBytes"]
        return self._query.rows(deliveries)

    def close(self) -> None:
        """Delete everything."""
        self._query.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def state_bytes(self) -> int:
        """Bytes of the groups in memory: their rows, and their places in directories."""
        return self.cold["resident_bytes"] + self.cold["directory_bytes"]

    def rate(self, first: int = 0, *, cpu: bool = False) -> float:
        """Return the events per second, from a batch on."""
        return sum(self.events[first:]) / sum((self.cpu if cpu else self.wall)[first:])

    def figures(self, first: int) -> dict[str, Any]:
        """Return measurements; rates are those from a batch on."""
        return {
            "events_per_second": self.rate(first),
            "events_per_cpu_second": self.rate(first, cpu=True),
            "state_bytes": self.state_bytes,
            "peak_bytes": self.peak,
            "misses": self.cold["returned"],
            "groups_left": self.cold["left"],
            "extents_read": self.cold["extents_read"],
            "bytes_read": self.cold["bytes_read"],
            "bytes_logged": self.cold["logged"],
            "bytes_evicted": self.cold["evicted"],
            "bytes_consolidated": self.cold["consolidated"],
            "log_bytes": self.log_bytes,
        }


def accumulated(tables: Sequence[pa.Table]) -> pa.Table:
    """Add up the changes of result rows; return the remaining rows, sorted."""
    rows = pa.concat_tables(tables)
    start = pc.struct_field(rows.column("lifetime").combine_chunks(), "start")
    rows = rows.drop_columns(["lifetime"]).append_column("start", start)
    names = [name for name in rows.column_names if name != "change"]
    summed = rows.group_by(names).aggregate([("change", "sum")])
    left = summed.filter(pc.not_equal(summed.column("change_sum"), 0))
    return left.sort_by([(name, "ascending") for name in names]).combine_chunks()


@dataclass(frozen=True, slots=True)
class Turns:
    """Runs of cases that processed every batch in turn."""

    runs: list[ZipfRun]
    #: wrong results, by case
    wrong: list[int]


def in_turns(cases: Sequence[Case], folder: str) -> Turns:
    """Feed every batch to all cases in turn, starting with another one each time; close them."""
    runs = [
        ZipfRun(case.flow, case.budget, os.path.join(folder, f"run-{number}"), case.shards)
        for number, case in enumerate(cases)
    ]
    accesses, schema = cases[0].accesses, runs[0].flow.batch_schema
    wrong, matches = [0] * len(runs), None
    if cases[0].kind == "growing":
        matches = Matches.of(accesses)
    for number in range(accesses.batches):
        batch = accesses.record_batch(number, schema)
        for turn in range(len(runs)):
            chosen = (turn + number) % len(runs)
            rows = runs[chosen].feed(batch)
            if matches is not None:
                wrong[chosen] += matches.wrong(rows, number * accesses.batch, batch.num_rows)
    for place, (case, run) in enumerate(zip(cases, runs, strict=True)):
        if matches is None:
            wrong[place] = _wrong_groups(run, accesses, case.kind)
        run.close()
    return Turns(runs, wrong)


def _wrong_groups(run: ZipfRun, accesses: Accesses, kind: str) -> int:
    """Request every group; count results that differ from numpy's. This is not timed."""
    every = np.arange(accesses.groups)
    last = np.full(len(every), accesses.events * TICK)
    asks = np.ones(len(every), dtype=np.bool_)
    timed = len(run.wall)
    found = run.feed(as_batch(last, every, every % VALUES, asks, run.flow.batch_schema))
    for series in (run.events, run.wall, run.cpu, run.held, run.reads):
        del series[timed:]
    wanted = totals(accesses, kind)
    keys = found.column("key").to_numpy()
    got = np.zeros_like(wanted)
    got[:, keys] = found.column("n").to_numpy(), found.column("total").to_numpy()
    missing: int = accesses.groups - len(np.unique(keys))
    return missing + int((got != wanted).any(axis=0).sum())


def totals(accesses: Accesses, kind: str) -> Ints:
    """Return count and sum of each group, by numpy."""
    found = np.zeros((2, accesses.groups), dtype=np.int64)
    for number in range(accesses.batches):
        _, key, value, asks = accesses.columns(number)
        key, value = key[~asks], value[~asks]
        worth = value % BINS if kind == "profiles" else value
        found[0] += np.bincount(key, minlength=accesses.groups)
        found[1] += np.bincount(key, worth, accesses.groups).astype(np.int64)
    return found


@dataclass(frozen=True, slots=True)
class Matches:
    """The events that each request matches, by numpy; requests are found by their times."""

    key: Ints
    value: Ints
    #: earlier events of the same key and value; 0 if it is no request
    count: Ints

    @classmethod
    def of(cls, accesses: Accesses) -> Matches:
        """Count what all requests match; events come in the order of time."""
        columns = [accesses.columns(number) for number in range(accesses.batches)]
        key, value, asks = (np.concatenate([each[n] for each in columns]) for n in (1, 2, 3))
        cell = key * VALUES + value
        order = np.argsort(cell, kind="stable")
        kept = ~asks[order]
        before = np.cumsum(kept) - kept
        cells = cell[order]
        count = np.zeros(len(key), dtype=np.int64)
        count[order] = np.where(kept, 0, before - before[np.searchsorted(cells, cells)])
        return cls(key, value, count)

    def wrong(self, rows: pa.Table, first: int, events: int) -> int:
        """Count result rows of some events that are wrong, and requests with too many or few."""
        start = pc.struct_field(rows.column("lifetime").combine_chunks(), "start")
        # Spark's files may have nanoseconds
        start = start.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        place = start.to_numpy() // TICK
        right = (place >= first) & (place < first + events)
        request = np.where(right, place, first)
        named = {"key": self.key, "value": self.value, "wanted": self.value}
        for name, of_request in named.items():
            right &= rows.column(name).to_numpy() == of_request[request]
        change = rows.column("change").to_numpy() if "change" in rows.column_names else right
        found = np.bincount(place[right] - first, change[right], events)
        wanted = self.count[first : first + events]
        return int(np.count_nonzero(~right)) + int(np.count_nonzero(found != wanted))
