"""The recommender with and without enough memory, batch by batch.

Idea: a query is warmed up with ratings; then others, with memory for a part of the first one's
    state
plus its buffers, are warmed up in the same way. All process the same batches of requests, or of
requests and ratings, in turn, each time starting with another one. The first batches are left out;
the others form five rounds. After every batch its time, the state in memory and the reads from the
log are recorded; some results are compared with the offline model.

Invariants:
1. All give the results of the offline model (`test_oracle_all_answer_as_the_offline_model`).
2. Requests keep the state below its limit without enough memory
   (`test_bounded_state_stays_below_its_limit`).

Limits: one process and one shard; on Spark the same components run in tasks. Rounds follow each
other in queries that stay warm: requests leave no state behind, so each begins like the first. If
only evicted groups are written, cold groups return to memory on the first read: if they returned on
the second, few clean ones would be evicted.

References: ICE, sections III-A and VIII-B, figures 5 to 7 and table I.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.cold.cold_zipf import UNLIMITED, ZipfRun
from examples.recommender.answers import Recommendations, Request, wrong
from examples.recommender.generator import Ratings
from examples.recommender.offline import SimilarityModel
from examples.recommender.workload import EVENT_SCHEMA, RATING, REQUEST, RatingWorkload
from icestream.core.times import Micros
from icestream.core.units import parse_interval
from icestream.operators.dataflow.stores import GATHERED, ColdOptions
from icestream.plan.events.dataflow import Dataflow
from icestream.state.groups.options import Durability, StoreOptions
from icestream.state.groups.store import GROUPS, HEAP

#: items in a result
K = 10
#: part of the state that fits into memory: the paper's limit leaves out 41 %
MEMORY = 0.59
#: share of a quota for rows and directories
STATE = (1 - GATHERED) * (HEAP + GROUPS)
#: rounds of batches; the median of their ratios counts
ROUNDS = 5
DAY: Micros = 86_400_000_000
#: results that are compared with the offline model
CHECKED = 20
#: counters of bytes that a query wrote, and of those that evictions wrote
WRITTEN = ("logged", "evicted", "consolidated")
LEFT = ("evicted", "consolidated")


@dataclass(frozen=True, slots=True)
class Scale:
    """How many ratings and requests there are."""

    users: int
    items: int
    #: ratings before the first request, and events of a batch of them
    warm_up: int
    warm_batch: int
    #: events of a batch after that, and batches of a round
    batch: int
    round: int
    #: days over which ratings come, and how long a rating counts
    days: int = 60
    window: str = "14 days"
    #: batches after the warm-up that are not counted: requested groups return to memory
    settling: int = 4

    @property
    def events(self) -> int:
        """Events after the warm-up."""
        return self.batch * (self.settling + ROUNDS * self.round)

    @property
    def ratings(self) -> pa.Table:
        """Ratings for the warm-up and for mixes of up to one update in two events."""
        count = self.warm_up + self.events // 2 + 1
        return Ratings(self.users, self.items, count, span=self.days * DAY).table()

    def workload(self, ratings: pa.Table, updates: int) -> RatingWorkload:
        """Return a mix with `updates` updates among ten events."""
        return RatingWorkload(
            ratings, self.warm_up, updates=updates, requests=10 - updates, events=self.events
        )


@dataclass(frozen=True, slots=True)
class Variant:
    """How a query stores its state."""

    #: whether all of it fits into memory, or only a part
    enough: bool = False
    durability: Durability = "log"
    clean_is_free: bool = True
    second_ask: bool = True

    def of(self, flow: Dataflow) -> Dataflow:
        """Return the query with its state kept that way."""
        store = StoreOptions(
            durability=self.durability,
            clean_is_free=self.clean_is_free,
            second_ask=self.second_ask,
        )
        return replace(flow, cold=ColdOptions(store))


ENOUGH, LITTLE = "enough", "little"
#: the first of all variants has enough memory: the others have a part of what it uses
PAIR = {ENOUGH: Variant(enough=True), LITTLE: Variant()}
EVICT, EVICT_ALL, LOG_ALL = "evict", "evict, clean written", "log, clean written"
SWITCHED = PAIR | {
    EVICT: Variant(durability="evict", second_ask=False),
    EVICT_ALL: Variant(durability="evict", clean_is_free=False, second_ask=False),
    LOG_ALL: Variant(clean_is_free=False),
}


def flow_of(window: str | None, k: int = K) -> Dataflow:
    """Return the query, written with the public interface; it needs a Spark session."""
    from examples.recommender.query import recommendations  # noqa: PLC0415
    from icestream.api.events import Events  # noqa: PLC0415 - PySpark is needed for this alone
    from icestream.plan.events.queries import compiled  # noqa: PLC0415
    from icestream.plan.nodes.events import FromSource  # noqa: PLC0415
    from icestream.plan.nodes.queries import Source  # noqa: PLC0415

    made = recommendations(Events(FromSource(EVENT_SCHEMA), {}), k=k, window=window)
    time = EVENT_SCHEMA.field("time").type
    sources, columns = (Source("events", 0),), (EVENT_SCHEMA,)
    return compiled(((made._node, "changes"),), {0: 0}, sources, columns, time)


def batches(
    events: pa.Table, cuts: npt.NDArray[np.int64], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Cut events as ingest reads them."""
    for first, last in pairwise(cuts.tolist()):
        rows = events.slice(first, last - first).combine_chunks()
        columns = [rows.column(name).combine_chunks() for name in EVENT_SCHEMA.names]
        source = pa.array(np.zeros(rows.num_rows, dtype=np.int32))
        times = columns[0].cast(schema.types[0])
        yield pa.RecordBatch.from_arrays([times, source, *columns], schema=schema)


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the runs over the same events."""

    run: ZipfRun
    answers: Recommendations = field(default_factory=Recommendations)

    def counted(self, *names: str) -> int:
        """Return the sum of counters from the first rating on."""
        return sum(self.run.cold[name] for name in names)


@dataclass(frozen=True, slots=True)
class Compared:
    """Runs over the same events, of which the first `warm` batches do not count."""

    sides: Mapping[str, ComparedRun]
    warm: int
    wrong: int
    budget: int


def compare(
    flow: Dataflow,
    scale: Scale,
    updates: int,
    folder: Path,
    variants: Mapping[str, Variant] = PAIR,
) -> Compared:
    """Warm queries up, the first with enough memory, then feed them in turn."""
    ratings = scale.ratings
    events = scale.workload(ratings, updates).table()
    first = np.append(np.arange(0, scale.warm_up, scale.warm_batch), scale.warm_up)
    later = np.append(np.arange(scale.warm_up, events.num_rows, scale.batch), events.num_rows)
    sides: dict[str, ComparedRun] = {}
    budget = UNLIMITED
    for number, (name, variant) in enumerate(variants.items()):
        bytes_ = UNLIMITED if variant.enough else budget
        side = ComparedRun(ZipfRun(variant.of(flow), bytes_, str(folder / f"run-{number}")))
        for batch in batches(events, first, flow.batch_schema):
            side.run.feed(batch)
        if variant.enough:
            budget = int(MEMORY * side.run.state_bytes / STATE)
        sides[name] = side
    turns = list(sides.values())
    for number, batch in enumerate(batches(events, later, flow.batch_schema)):
        for turn in range(len(turns)):
            side = turns[(number + turn) % len(turns)]
            side.answers.take(side.run.feed(batch))
    found = wrong_answers(scale.window, events, ratings, [side.answers for side in turns])
    for side in turns:
        side.run.close()
    return Compared(sides, len(first) - 1 + scale.settling, found, budget)


def wrong_answers(
    window: str | None, events: pa.Table, ratings: pa.Table, answers: list[Recommendations]
) -> int:
    """Count wrong answers among some requests, by the offline model."""
    stream = events.column("stream").to_numpy()
    asked = np.flatnonzero(stream == REQUEST)
    chosen = asked[np.linspace(0, len(asked) - 1, min(CHECKED, len(asked))).astype(np.int64)]
    times = events.column("time").cast(pa.int64()).to_numpy()
    users = events.column("user").to_numpy()
    lifetime, count = parse_interval(window) if window else None, 0
    known = ratings.slice(0, int(np.count_nonzero(stream == RATING)))
    for place in chosen.tolist():
        at, user = int(times[place]), int(users[place])
        model = SimilarityModel.at(known, at, lifetime)
        found = (each.of(Request(user, at), at) for each in answers)
        count += sum(wrong(answer, model, user, K) is not None for answer in found)
    return count


def figures_of(compared: Compared, scale: Scale) -> dict[str, Any]:
    """Put the runs with and without enough memory side by side, over time and in sums."""
    warm = compared.warm
    pair = {name: compared.sides[name].run for name in PAIR}
    enough, little = pair.values()
    rounds = range(warm, warm + ROUNDS * scale.round, scale.round)
    wall, cpu = (
        [_ratio(enough, little, of, slice(first, first + scale.round)) for first in rounds]
        for of in ("wall", "cpu")
    )
    held = [np.array(run.held[warm:], dtype=np.float64) for run in pair.values()]
    return {
        "budget_bytes": compared.budget,
        "peak_bytes": little.peak,
        "state_bytes": enough.held[-1],
        "state_bytes_limited": little.held[-1],
        "memory_saved": float(1 - held[1].mean() / held[0].mean()),
        "memory_saved_at_the_end": 1 - little.held[-1] / enough.held[-1],
        "ratio": float(np.median(wall)),
        "cpu_ratio": float(np.median(cpu)),
        "ratios": wall,
        "cpu_ratios": cpu,
        "groups_left": little.cold["left"],
        "groups_returned": little.cold["returned"],
        "wrong": compared.wrong,
        "lines": {name: lines(side.run, warm) for name, side in compared.sides.items()},
    }


def moved(compared: Compared) -> dict[str, dict[str, float]]:
    """Say what each run read and wrote, and what share of a processor it took.

    What it wrote is counted from the first rating on: most groups leave while ratings come.
    """
    found = {}
    for name, side in compared.sides.items():
        run, warm = side.run, compared.warm
        seconds = sum(run.wall[warm:])
        found[name] = {
            "events_per_second": run.rate(warm),
            "cpu": sum(run.cpu[warm:]) / seconds,
            "reads_per_second": sum(run.reads[warm:]) / seconds,
            "writes_per_second": side.counted("extents") / sum(run.wall),
            "groups_written": side.counted("extents"),
            "bytes_written": side.counted(*WRITTEN),
            "bytes_evicted": side.counted(*LEFT),
        }
    return found


def _ratio(enough: ZipfRun, little: ZipfRun, of: str, chosen: slice) -> float:
    """Return the speed of a round without enough memory, as a part of that with it."""
    return float(sum(getattr(enough, of)[chosen]) / sum(getattr(little, of)[chosen]))


def lines(run: ZipfRun, warm: int) -> list[dict[str, float]]:
    """Return what was noted after each batch."""
    series = zip(run.events, run.wall, run.cpu, run.held, run.reads, strict=True)
    return [
        {
            "events_per_second": events / wall,
            "cpu": cpu / wall,
            "state_bytes": held,
            "reads_per_second": reads / wall,
        }
        for events, wall, cpu, held, reads in list(series)[warm:]
    ]
