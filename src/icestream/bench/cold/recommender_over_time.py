"""The recommender with and without enough memory, batch by batch.

Idea: a query is warmed up with ratings; then another one, with memory for a part of the state of
the first and the buffers beside it, is warmed up alike. Both get the same batches of requests, or
of requests and ratings, in turn, the first of them another one each time. After every batch its
time, the state in memory and the reads from the log are noted, the first few left out; some answers
are compared with the offline model.

Invariants:
1. Both give the answers of the offline model (`test_oracle_both_answer_as_the_offline_model`).
2. Requests leave the state without enough memory below its limit
   (`test_bounded_state_stays_below_its_limit`).

Limits: one process and one shard; on Spark the same components run in tasks.

References: ICE, sections III-A and VIII-B, figures 5 to 7.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.apps.recommender.answers import Answers, Request, wrong
from icestream.apps.recommender.generator import Ratings
from icestream.apps.recommender.offline import Model
from icestream.apps.recommender.workload import EVENT_SCHEMA, REQUEST, Workload
from icestream.bench.cold.cold_zipf import UNLIMITED, Run
from icestream.bench.registry import Figures
from icestream.core.times import Micros
from icestream.core.units import parse_interval
from icestream.operators.dataflow.stores import STATE
from icestream.plan.dataflow import Dataflow

#: items in an answer
K = 10
#: part of the state that fits into memory: the paper's limit leaves out 41 %
MEMORY = 0.59
DAY: Micros = 86_400_000_000
#: answers that are compared with the offline model
CHECKED = 20


@dataclass(frozen=True, slots=True)
class Scale:
    """How many ratings and requests there are."""

    users: int
    items: int
    #: ratings before the first request, and events of a batch of them
    warm_up: int
    warm_batch: int
    #: events after that, events of a batch, and batches of a round
    events: int
    batch: int
    round: int
    #: days over which ratings come, and how long a rating counts
    days: int = 60
    window: str = "14 days"
    #: batches after the warm-up that are not counted: who is asked for comes back into memory
    settling: int = 4

    @property
    def ratings(self) -> pa.Table:
        """Ratings for the warm-up and for mixes of up to one update in two events."""
        count = self.warm_up + self.events // 2 + 1
        return Ratings(self.users, self.items, count, span=self.days * DAY).table()

    def workload(self, ratings: pa.Table, updates: int) -> Workload:
        """Return a mix with so many updates among ten events."""
        return Workload(
            ratings, self.warm_up, updates=updates, requests=10 - updates, events=self.events
        )


def flow_of(window: str | None, k: int = K) -> Dataflow:
    """Return the query, written by the public interface; a Spark session must be there."""
    from icestream.api.events import Events  # noqa: PLC0415 - PySpark is needed for this alone
    from icestream.apps.recommender.query import recommendations  # noqa: PLC0415
    from icestream.plan.event_nodes import FromSource  # noqa: PLC0415
    from icestream.plan.events import compiled  # noqa: PLC0415
    from icestream.plan.nodes import Source  # noqa: PLC0415

    made = recommendations(Events(FromSource(EVENT_SCHEMA), {}), k=k, window=window)
    time = EVENT_SCHEMA.field("time").type
    sources, columns = (Source("events", 0),), (EVENT_SCHEMA,)
    return compiled(((made._node, "update"),), {0: 0}, sources, columns, time)


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
class Compared:
    """Two runs over the same events, of which the first `warm` batches do not count."""

    enough: Run
    little: Run
    warm: int
    wrong: int
    budget: int


def compare(
    flow: Dataflow, scale: Scale, ratings: pa.Table, updates: int, folder: Path
) -> Compared:
    """Warm two queries up, with and without enough memory, then feed them in turns."""
    workload = scale.workload(ratings, updates)
    events = workload.table()
    enough = Run(flow, UNLIMITED, os.path.join(folder, "enough"))
    schema = flow.batch_schema
    first = np.append(np.arange(0, scale.warm_up, scale.warm_batch), scale.warm_up)
    for batch in batches(events, first, schema):
        enough.feed(batch)
    budget = int(MEMORY * enough.state_bytes / STATE)
    little = Run(flow, budget, os.path.join(folder, "little"))
    for batch in batches(events, first, schema):
        little.feed(batch)
    later = np.append(np.arange(scale.warm_up, events.num_rows, scale.batch), events.num_rows)
    runs, answers = (enough, little), (Answers(), Answers())
    for number, batch in enumerate(batches(events, later, schema)):
        for turn in range(len(runs)):
            chosen = (number + turn) % len(runs)
            answers[chosen].take(runs[chosen].feed(batch))
    found = sum(wrong_answers(scale, events, ratings, each) for each in answers)
    for run in runs:
        run.close()
    return Compared(enough, little, len(first) - 1 + scale.settling, found, budget)


def wrong_answers(scale: Scale, events: pa.Table, ratings: pa.Table, answers: Answers) -> int:
    """Count wrong answers among some requests, by the offline model."""
    stream = events.column("stream").to_numpy()
    asked = np.flatnonzero(stream == REQUEST)
    chosen = asked[np.linspace(0, len(asked) - 1, min(CHECKED, len(asked))).astype(np.int64)]
    times = events.column("time").cast(pa.int64()).to_numpy()
    users = events.column("user").to_numpy()
    window, count = parse_interval(scale.window), 0
    known = int(np.count_nonzero(stream == 0))
    for place in chosen.tolist():
        at, user = int(times[place]), int(users[place])
        model = Model.at(ratings.slice(0, known), at, window)
        count += wrong(answers.of(Request(user, at), at), model, user, K) is not None
    return count


def figures_of(compared: Compared, scale: Scale) -> dict[str, Any]:
    """Put two runs side by side, over time and in sums."""
    enough, little, warm = compared.enough, compared.little, compared.warm
    rounds = range(warm, len(enough.wall), scale.round)
    wall, cpu = ([_ratio(compared, of, first, scale) for first in rounds] for of in ("wall", "cpu"))
    held = [np.array(run.held[warm:], dtype=np.float64) for run in (enough, little)]
    sides = {"enough": enough, "little": little}
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
        "groups_left": little.cold["left"],
        "groups_returned": little.cold["returned"],
        "wrong": compared.wrong,
        **{f"{name}_events_per_second": run.rate(warm) for name, run in sides.items()},
        **{
            f"{name}_reads_per_second": sum(run.reads[warm:]) / sum(run.wall[warm:])
            for name, run in sides.items()
        },
        **{
            f"{name}_cpu": sum(run.cpu[warm:]) / sum(run.wall[warm:]) for name, run in sides.items()
        },
        "lines": {name: _lines(run, warm) for name, run in sides.items()},
    }


def _ratio(compared: Compared, of: str, first: int, scale: Scale) -> float:
    """Return the speed of a round without enough memory, as a part of that with it."""
    chosen = slice(first, first + scale.round)
    taken = [sum(getattr(run, of)[chosen]) for run in (compared.enough, compared.little)]
    return float(taken[0] / taken[1])


def _lines(run: Run, warm: int) -> list[dict[str, float]]:
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


def plot(figures: Figures, target: Path) -> None:
    """Draw memory, speed, reads and processor time over batches, and memory saved by updates."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(11, 9), layout="constrained")
    axes = drawing.subplots(3, 2)
    drawn = (
        ("recommend only", "state_bytes", 1e-6, "state in memory, MB"),
        ("recommend only", "events_per_second", 1.0, "events/s"),
        ("mixed", "state_bytes", 1e-6, "state in memory, MB"),
        ("mixed", "events_per_second", 1.0, "events/s"),
        ("mixed", "reads_per_second", 1.0, "reads/s"),
    )
    for place, (case, field, unit, label) in zip(axes.flat, drawn, strict=False):
        for name, lines in figures[case]["lines"].items():
            place.plot([unit * line[field] for line in lines], label=f"{name} memory")
        place.set(title=case, xlabel="batch", ylabel=label)
        place.set_ylim(bottom=0)
        place.legend(fontsize=8)
    shares = {name: each for name, each in figures.items() if name.startswith("updates ")}
    saved = axes.flat[5]
    saved.bar(list(shares), [100 * each["memory_saved_at_the_end"] for each in shares.values()])
    saved.set(title="memory saved at the end, %")
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)
