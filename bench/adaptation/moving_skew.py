"""Latency while load moves from node to node: with no adaptation, and with key groups that move.

Idea: four nodes process rows of five key groups each, 50,000 keys per group, and do some work for
every row before it is folded; computing panes of a minute and consolidating them into windows of
five minutes are split. All nodes begin with a load of 0.7. Then the key groups of one node get more
and more rows, until after three minutes its load is 0.5 higher, 1.2 in all; the mean is then 0.825,
so that balanced nodes could keep up. The measured loads of key groups are balanced every five
minutes, every minute, or after every batch, by groups that move instantly, are copied, or are
handed over.

The work is real and its processor time is measured, node by node and one after the other; the clock
is virtual. A batch begins when the one before has ended and takes all rows that came meanwhile, as
Spark's do, up to a limit; it lasts as long as its busiest node, and moves keep both nodes busy. One
measurement determines how much work a minute can hold, and is used for every variant. With every
batch a constant piece of work is timed, and all times are scaled to a constant processor speed.

After that, a query runs in real time on a Spark cluster whose workers have a core each
(`cluster_skew`), with and without balancing.

Limits: a minute is as short as its work, some seconds, so moving weighs more than on machines where
it is a real minute. Sources cost nothing. With few triggers in a minute, or little work in each,
nothing is ever overloaded: the fixed cost of a batch is shared by more rows as batches grow.

References: section 7.5, figure 13, of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.adaptation import cluster_skew
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.research.migration import Move, Way
from bench.research.simulated_cluster.job import RunningJob
from bench.research.split_combine import ComponentShape
from bench.windows.window_job import MINUTE, opened
from icestream.kernels.fold import routes_of
from icestream.operators.protocol import Emitted
from icestream.plan.balance.rebalancing import rebalanced
from icestream.plan.windows.grid import Windows
from icestream.state.keys import KeyCodec

#: maximum rows of a batch, in triggers
MOST = 30
#: batches of a minute while the capacity of a node is measured
BATCHES = 5
#: load of a node at first, as a share of its capacity, and the load added to it
LOAD, EXTRA = 0.7, 0.5
#: minutes until the load of a node is highest, and until that of the next one begins
RISING, ROUND = 3, 5
#: decay of measured loads per batch, if groups move after every batch
FADING = 0.5
#: rows of the work that gauges the processor's speed, and number of its times kept
PIECE, TIMES = 2_000, 9
#: instalments of a loan
MONTHS = 360
WINDOWS = (Windows(5 * MINUTE, 5 * MINUTE),)


@dataclass(frozen=True)
class Case:
    """The size of a run."""

    nodes: int
    groups_per_node: int
    keys_per_group: int
    #: rows of a key group and a trigger
    rows: int
    #: triggers in a minute
    triggers: int
    #: minutes before load moves
    calm: int
    rounds: int

    @property
    def groups(self) -> int:
        """Return the number of key groups of all nodes."""
        return self.nodes * self.groups_per_node

    @property
    def steps(self) -> int:
        """Return the number of triggers of a run."""
        return self.triggers * (self.calm + ROUND * self.rounds)


CASES = {
    Size.SMALL: Case(4, 3, 1_000, 1_000, 30, 1, 1),
    Size.FULL: Case(4, 5, 50_000, 7_000, 60, 1, 1),
}


@dataclass(frozen=True)
class Adaptation:
    """How key groups move, and every how many minutes; 0 is after every batch."""

    way: Way | None
    period: int = 1

    @property
    def name(self) -> str:
        """Return a readable name."""
        if self.way is None:
            return "none"
        return f"{self.way.value}, every {f'{self.period} min' if self.period else 'batch'}"


NONE = Adaptation(None)
WAYS = (
    NONE,
    Adaptation(Way.DISRUPTIVE, 5),
    Adaptation(Way.DISRUPTIVE, 1),
    Adaptation(Way.INSTANT, 5),
    Adaptation(Way.INSTANT, 1),
    Adaptation(Way.INSTANT, 0),
    Adaptation(Way.HANDOVER, 0),
)


@dataclass
class SkewRun:
    """The result of a run."""

    #: minute in which each batch began, seconds it took, and seconds from the first row to its end
    batches: list[tuple[float, float, float]] = field(default_factory=list)
    moves: int = 0
    #: seconds of processor time that moves took
    moving: float = 0.0
    #: rows that are missing in the results, or counted twice
    wrong: int = 0


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run every variant over the same rows."""
    case = CASES[size]
    folder = scratch(workspace(), "moving-skew")
    progress.plan(2 + len(WAYS))
    progress.step("how much work a minute holds")
    keys = keys_by_group(case)
    gauge = Gauge()
    pace = calibrated(case, keys, folder, gauge)
    figures: dict[str, Any] = {"minute_s": case.triggers * pace.trigger, **asdict(case), "ways": {}}
    runs = []
    for way in WAYS:
        progress.step(way.name)
        found = run(case, keys, way, pace, folder, gauge)
        runs.append(found)
        times = [took for _, took, _ in found.batches]
        figures["ways"][way.name] = {
            "p50_s": statistics.median(times),
            "p99_s": float(np.percentile(times, 99)),
            "longest_delay_s": max(delay for _, _, delay in found.batches),
            "moves": found.moves,
            "moving_s": found.moving,
            "timeline": found.batches,
        }
    progress.step("on a cluster, in real time")
    figures["cluster"] = on_cluster(folder / "cluster", size)
    shutil.rmtree(folder)
    wrong = sum(abs(each.wrong) for each in runs)
    return Measurement(figures, bars(figures, wrong))


def on_cluster(folder: Path, size: Size) -> dict[str, Any]:
    """Measure latencies on workers that have a core each."""
    from tests.fixtures.cluster import Cluster  # noqa: PLC0415 - needs Spark

    with Cluster(cluster_skew.WORKERS, pinned=True) as cluster:
        spark = cluster.session("moving-skew")
        found = cluster_skew.measured(spark, folder, size)
        spark.stop()
    return found


def bars(figures: Figures, wrong: int) -> tuple[Bar, ...]:
    """Compare the figures with the bars."""
    ways, real = figures["ways"], figures["cluster"]
    balanced, fixed = real["with balancing"], real["without balancing"]
    without = ways[NONE.name]["p99_s"]
    wanted = [Adaptation(Way.INSTANT, 0), Adaptation(Way.HANDOVER, 0)]
    lost = max(abs(each["lost_or_twice"]) for each in (balanced, fixed))
    return (
        Bar.at_most("rows counted wrongly", 0, wrong),
        Bar.at_most("cluster: events lost or read twice", 0, lost),
        Bar.at_most(
            "cluster: p99 of event latency with balancing by that without",
            1 / 2,
            balanced["p99_s"] / fixed["p99_s"],
        ),
        Bar.at_least("cluster: moves to another executor", 2 * real["rounds"], balanced["moves"]),
        *(
            Bar.at_most(
                f"p99 of batch times by that without adaptation: {each.name}",
                1 / 3,
                ways[each.name]["p99_s"] / without,
            )
            for each in wanted
        ),
    )


def keys_by_group(case: Case) -> list[npt.NDArray[np.int64]]:
    """Return the keys of each key group."""
    keys = np.arange(case.groups * case.keys_per_group)
    schema = pa.schema([("key", pa.int64())])
    id_high, _ = KeyCodec(schema).identify(
        pa.RecordBatch.from_arrays([pa.array(keys)], schema=schema)
    )
    groups, many = np.empty(len(keys), dtype=np.int64), case.groups
    routes_of(id_high, many, np.arange(many), groups, np.zeros(many, dtype=np.int64))
    return [keys[groups == group] for group in range(many)]


@dataclass(frozen=True)
class VirtualPace:
    """How much work fits into virtual time."""

    #: seconds between two triggers at which nodes have the wanted load
    trigger: float
    #: rows between two triggers that add the highest extra load to a node
    extra: float


class Gauge:
    """Measures the processor's current speed by a constant piece of work."""

    def __init__(self) -> None:
        """Measure the initial time of the work."""
        values = np.arange(PIECE) % 1_000
        self._piece = pa.RecordBatch.from_pydict({"x0": values})
        self._last = deque((self._timed() for _ in range(TIMES)), maxlen=TIMES)
        self._first = statistics.median(self._last)

    def slowness(self) -> float:
        """Return the recent median time of the work relative to the initial one."""
        self._last += [self._timed() for _ in range(TIMES // 3)]
        return statistics.median(self._last) / self._first

    def _timed(self) -> float:
        began = time.process_time()
        present_value(self._piece)
        return time.process_time() - began


def calibrated(
    case: Case, keys: Sequence[npt.NDArray[np.int64]], folder: Path, gauge: Gauge
) -> VirtualPace:
    """Measure the capacity of a node: rows of a minute in few batches, and twice as many."""
    took = []
    for times in (1, 2):
        more = replace(case, rows=times * case.rows)
        stream, job = SkewedStream(more, keys, 0.0), _opened(more, folder / f"calibration-{times}")
        busy = 0.0
        whole, batch = 2 * case.triggers, max(1, case.triggers // BATCHES)
        for step in range(0, whole, batch):
            last = min(step + batch, whole)
            job.feed(stream.rows(step, last, job.places), stream.instant(last))
            # the second minute, to its end, so that the end of a pane counts
            if step >= case.triggers:
                busy += statistics.fmean(job.busy.values()) / gauge.slowness()
        job.close()
        took.append(busy / case.triggers)
    trigger = took[0] / LOAD
    per_row = (took[1] - took[0]) / (case.rows * case.groups_per_node)
    return VirtualPace(trigger, EXTRA * trigger / per_row)


class SkewedStream:
    """Rows whose skew of keys changes over time."""

    def __init__(self, case: Case, keys: Sequence[npt.NDArray[np.int64]], extra: float) -> None:
        """Start; the groups of the chosen node get `extra` more rows at each trigger."""
        self._case = case
        self._extra = extra
        self._keys = keys
        #: rows generated
        self.made = 0
        #: the key groups that were on the chosen node when its round began
        self._chosen: dict[int, tuple[int, ...]] = {}

    def instant(self, step: int) -> int:
        """Return the event time of a trigger."""
        return step * MINUTE // self._case.triggers

    def rows(self, first: int, last: int, places: Sequence[int]) -> pa.RecordBatch:
        """Return the rows between two triggers; `places` are the current nodes of the groups."""
        parts = [self._step(step, places) for step in range(first, last)]
        self.made += sum(part.num_rows for part in parts)
        return pa.concat_batches(parts) if parts else self._step(0, places).slice(0, 0)

    def _step(self, step: int, places: Sequence[int]) -> pa.RecordBatch:
        dice = np.random.default_rng(step)
        counts = np.full(self._case.groups, self._case.rows)
        skewed = self._skewed(step, places)
        more = self._extra / max(1, len(skewed))
        for group in skewed:
            counts[group] += int(more * self._risen(step))
        keys = np.concatenate(
            [
                mine[dice.integers(0, len(mine), count)]
                for mine, count in zip(self._keys, counts.tolist(), strict=True)
            ]
        )
        times = dice.integers(self.instant(step), self.instant(step + 1), len(keys))
        values = dice.integers(0, 1_000, len(keys))
        return pa.RecordBatch.from_pydict({"time": times, "k0": keys, "x0": values})

    def _skewed(self, step: int, places: Sequence[int]) -> tuple[int, ...]:
        round_ = (step // self._case.triggers - self._case.calm) // ROUND
        if round_ < 0:
            return ()
        if round_ not in self._chosen:
            node = round_ % self._case.nodes
            here = tuple(group for group, where in enumerate(places) if where == node)
            self._chosen[round_] = here
        return self._chosen[round_]

    def _risen(self, step: int) -> float:
        since = step / self._case.triggers - self._case.calm
        return min(1.0, since % ROUND / RISING)


def run(
    case: Case,
    keys: Sequence[npt.NDArray[np.int64]],
    way: Adaptation,
    pace: VirtualPace,
    folder: Path,
    gauge: Gauge,
) -> SkewRun:
    """Run the whole stream in virtual time."""
    trigger = pace.trigger
    stream, job, found = (
        SkewedStream(case, keys, pace.extra),
        _opened(case, folder / way.name),
        SkewRun(),
    )
    loads = np.zeros(case.groups)
    now, done, adapted = trigger, 0, case.calm * case.triggers
    while done < case.steps:
        ready = min(int(now / trigger + 1e-9), case.steps)
        if ready <= done:
            now = (done + 1) * trigger
            continue
        last = min(ready, done + MOST)
        extra: dict[int, float] = {}
        if way.way is not None and done - adapted >= way.period * case.triggers:
            adapted = done
            extra = _adapt(job, loads, case.nodes, way.way, found)
            loads *= 0.0 if way.period else FADING
        found.wrong -= _counted(job.feed(stream.rows(done, last, job.places), stream.instant(last)))
        loads += job.load
        busy = job.busy
        took = max(busy.get(node, 0.0) + extra.get(node, 0.0) for node in range(case.nodes))
        took /= gauge.slowness()
        found.batches.append((done / case.triggers, took, now + took - done * trigger))
        now, done = max(now + took, (done + 1) * trigger), last
    rest = stream.rows(0, 0, job.places)
    found.wrong += stream.made - _counted(job.feed(rest, stream.instant(2 * case.steps)))
    job.close()
    return found


def _counted(emitted: Sequence[Emitted]) -> int:
    """Return the number of rows counted in the results; each row is in one window."""
    return sum(int(rows.column("n").to_numpy().sum()) for _, rows in emitted)


def _adapt(
    job: RunningJob, loads: npt.NDArray[np.float64], nodes: int, way: Way, found: SkewRun
) -> dict[int, float]:
    """Move key groups to balance the nodes; return the seconds that nodes were busy."""
    places = job.places
    wanted = rebalanced(loads.tolist(), places, nodes, most_moves=len(places))
    moves = [
        Move(group, there, way)
        for group, (here, there) in enumerate(zip(places, wanted, strict=True))
        if here != there
    ]
    extra: dict[int, float] = {}
    for each in job.move(moves):
        found.moves += 1
        found.moving += each.processor
        for node in (places[each.group], wanted[each.group]):
            extra[node] = extra.get(node, 0.0) + each.processor
    return extra


def _opened(case: Case, folder: Path) -> RunningJob:
    homes = [group % case.nodes for group in range(case.groups)]
    return opened(
        folder,
        ComponentShape.SPLIT,
        case.groups,
        windows=WINDOWS,
        nodes=case.nodes,
        homes=homes,
        synced=False,
        mapped=present_value,
    )


def present_value(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Replace the monthly payment of a loan by its present value: work for every row."""
    monthly = rows.column("x0").to_numpy()
    rates = 0.001 + monthly / 1e6
    worth = np.zeros(len(monthly))
    for month in range(MONTHS):
        worth += monthly * np.exp(-rates * month)
    values = pa.array(worth.astype(np.int64))
    return rows.set_column(rows.schema.get_field_index("x0"), "x0", values)


def plot(figures: Figures, target: Path) -> None:
    """Draw how long rows waited for the end of their batch, over time."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(9, 4.5), layout="constrained")
    axes = drawing.subplots()
    for name, row in figures["ways"].items():
        minutes, _, delays = zip(*row["timeline"], strict=True)
        axes.plot(minutes, delays, lw=1.2, label=name)
    axes.set(
        yscale="log",
        xlabel="minutes (virtual)",
        ylabel="seconds from first row to end of batch",
        title=f"a node in turn gets {EXTRA:.0%} more than its {LOAD:.0%}",
    )
    axes.legend(fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)


BENCH = Bench(
    "moving-skew",
    "while load moves, batches with adaptation take at most a third of those without, at p99",
    measure,
    plot,
)
