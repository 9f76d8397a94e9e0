"""Update streams: how long the shards may serve in a version, and the report about it.

Idea: a batch should last as long as the interval between two batches, hardly longer. Whatever is
not serving (reading, exchange, log, commit, Spark's own work, waiting for a sink that trails) is
measured; its expected time is subtracted from the interval, and the rest is for serving, but at
least as much as the other work takes, up to an interval. Between two versions keys are served in
spare time (`operators/latest/serving_ahead`), unless a budget limits serving. Tasks that share a
core divide that time among them, and the shards of a task share what it has. Which shard of a task
begins changes from version to version, so each is served even if there is only time for one key.

Invariants:
1. While keys wait, even a batch without events makes a version
   (`test_waiting_keys_are_served_on_idle_ticks`).
2. At the end of the input all waiting keys are served
   (`test_a_flush_serves_everything_that_waits`).
3. Serving takes no more than its time, however many shards a task has
   (`test_bounded_shards_of_a_task_share_its_time`), and all of them are served
   (`test_every_shard_is_served_even_if_there_is_time_for_one_key`).
4. Keys are forgotten by what most events say the time is
   (`test_one_time_from_the_future_forgets_nobody`).
5. Serving gets as much time as everything else (`test_a_slow_sink_leaves_time_for_serving`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.latest.pacing import ModeSwitch, QueueMode, ServingTime, SwitchPolicy
from icestream.operators.latest.report import ServingReport, combined_report
from icestream.operators.latest.serving import LIFETIMES, Serving, ServingOperator
from icestream.operators.latest.update_operator import AppendOperator, UpdateInputs
from icestream.operators.latest.window_serving import WindowServing, WindowServingOperator
from icestream.operators.protocol import Operator, Shard
from icestream.plan.nodes.queries import AnyPlan
from icestream.plan.nodes.updates import Updates
from icestream.runtime.exchange.parcels import ParcelReader, Parcels
from icestream.runtime.version.task import ShardWork
from icestream.runtime.version.work import Arrivals, Parcel, VersionContext, VersionResult, Work
from icestream.runtime.work.latest.ingest import EVERY, NEWEST, UpdatesIngest
from icestream.state.versions.commits import Commit

#: part of the interval reserved for other work before it has been measured
FIRST_GUESS = 0.25
#: batches from which the expected time is computed, and how many of them may have taken longer
BATCHES = 8
LONGER = 1
#: intervals of work in a batch beyond which only the newest updates are processed
LONGEST = 4
#: part of the interval by which batches may overrun it while keys wait: the next one begins at once
#: then, but a batch that ends early waits for the next interval
OVERRUN = 0.05


@dataclass
class Overhead:
    """The seconds that a batch is expected to spend on everything but reading and serving.

    The first batch counts only until the second: it includes work that is done only once.
    """

    _first: float | None = None
    _spent: deque[float] = field(default_factory=lambda: deque(maxlen=BATCHES))

    def learn(self, seconds: float) -> None:
        if self._first is None:
            self._first = seconds
        else:
            self._spent.append(seconds)

    def expected(self, interval: float) -> float:
        if not self._spent:
            guess = FIRST_GUESS * interval
            return guess if self._first is None else min(guess, self._first)
        ranked = sorted(self._spent, reverse=True)
        return ranked[min(LONGER, len(ranked) - 1)]


@dataclass(frozen=True)
class UpdatesShard(ShardWork):
    """The waiting keys of one shard."""

    plan: Updates
    #: time for serving, shared with the other shards of the task
    time: ServingTime
    #: when the rows of the previous version reached the application; None if there were none
    delivered: Micros | None
    #: whether all events are processed, not only the newest of each key
    whole: bool = False
    #: instant before which windows are full
    watermark: Micros = MINUS_INFINITY
    #: how long keys may be served after the version
    ahead: Micros = 0
    #: keys without updates since then are forgotten
    forget: Micros = MINUS_INFINITY

    @property
    def lifetimes(self) -> tuple[str, ...]:
        return LIFETIMES

    @property
    def views(self) -> int:
        return len(self.plan.steps)

    def operator(self, space: Shard) -> Operator:
        plan = self.plan
        every = AppendOperator(plan.every, plan.clock, self.time) if plan.every else None
        if plan.latest is None:
            assert every is not None
            return every
        schedule = plan.latest.schedule
        if plan.windowed is not None:
            windows = WindowServing(
                plan.windowed,
                plan.steps[0],
                schedule,
                self.time,
                plan.clock,
                plan.front,
                self.delivered,
                self.watermark,
                self.forget,
            )
            return WindowServingOperator(windows, space)
        spec = Serving(
            plan.waits,
            plan.newest,
            schedule,
            self.time,
            self.delivered,
            plan.clock,
            self.forget,
            self.whole,
            plan.ranks,
            plan.front,
            self.ahead,
        )
        return ServingOperator(spec, space, every)

    def inputs(self, reader: ParcelReader, shard: int) -> UpdateInputs:
        newest, every = (Parcels(reader, shard, part=kind) for kind in (NEWEST, EVERY))
        return UpdateInputs(newest, every)


class UpdatesWork(Work):
    """Versions of an update stream."""

    def __init__(self, plan: Updates) -> None:
        self._plan = plan
        self._overhead = Overhead()
        self._began = 0.0
        #: seconds that the previous version spent on reading and serving
        self._known = 0.0
        #: switches between processing all events and only the newest
        self._switch = ModeSwitch()
        #: seconds that an event takes, if known
        self._each = 0.0

    def ordinals(self, shards: int) -> int:
        return shards * len(LIFETIMES)

    def ingest(self, context: VersionContext) -> UpdatesIngest:
        before = context.before
        if (
            context.trigger is not None
            and before is not None
            and before.batch == context.trigger[0]
        ):
            self._overhead.learn(max(0.0, context.trigger[1] - self._known))
        self._began = self._plan.clock.monotonic()
        if before is not None and self._plan.switches and "mode" in before.decisions:
            mode, against, self._each = before.decisions["mode"]
            self._switch = ModeSwitch(QueueMode(mode), against)
        whole = self._plan.switches and self._switch.mode is QueueMode.APPEND
        return UpdatesIngest(self._plan, context.version, context.watermark, context.routes, whole)

    def is_due(self, before: Commit | None, arrived: Arrivals) -> bool:
        ends = INFINITY if before is None else before.decisions.get("ends", INFINITY)
        return self._ended_before(arrived) >= ends

    def _ended_before(self, arrived: Arrivals) -> Micros:
        """Return the instant before which windows are full: in silence it follows the clock."""
        watermark = AnyPlan.watermark(self._plan, MINUS_INFINITY, arrived.passed)
        return watermark if watermark == MINUS_INFINITY else watermark + arrived.silence

    def run(self, context: VersionContext, arrived: Arrivals) -> VersionResult:
        """Let the shards serve while there is time."""
        reading = 0.0 if context.flushing else self._plan.clock.monotonic() - self._began
        waves = -(-len(set(context.placement)) // context.executor.parallel)
        budget = self._budget(context, waves, reading)
        order = [(context.version + n) % context.shards for n in range(context.shards)]
        watermark, ages = self._ended_before(arrived), self._ages(context, arrived)
        times = _serving_times(context, arrived.parcels, budget, order)
        whole = self._decide(context, arrived.total("rows"))
        tasks = [
            context.task(
                work=UpdatesShard(
                    self._plan,
                    times[context.placement[shard]],
                    context.delivered,
                    whole,
                    watermark,
                    self._ahead(context),
                    self._forget_before(ages[0]),
                ),
                shard=shard,
                watermark=arrived.reached,
                first_ordinal=context.first_ordinal + shard * len(LIFETIMES),
                quota=self.quota(context, shard),
                parcels=tuple(arrived.paths),
            )
            for shard in order
        ]
        reports = sorted(context.executor.run(tasks), key=lambda report: report.shard)
        served = [ServingReport.from_json(each.statistics["updates"]) for each in reports]
        spent: Counter[int] = Counter()
        for place, each in zip(context.placement, served, strict=True):
            spent[place] += each.serving
        found = replace(combined_report(served), serving=max(spent.values()))
        self._known = reading + waves * found.serving / 1e6
        rows = arrived.total("rows")
        sent = arrived.total("entries") - (rows if self._plan.every else 0)
        superseded = rows - sent if self._plan.newest else 0
        shown = self._shown(found, superseded, budget)
        decisions: dict[str, Any] = {
            "waiting": found.waiting,
            "waits": [each.waiting for each in served],
            "ages": ages,
        }
        if self._plan.windowed is not None:
            decisions["ends"] = found.ends
        if self._plan.switches:
            if found.served:
                took = waves * found.serving / 1e6 / found.served
                self._each = took if not self._each else (self._each + took) / 2
            decisions["mode"] = [str(self._switch.mode), self._switch.against, self._each]
            shown = {**shown, "mode": str(self._switch.mode)}
        return VersionResult(reports, decisions, (), {"updates": shown})

    def _ages(self, context: VersionContext, arrived: Arrivals) -> list[Micros]:
        """Return the time by which keys age, and the median time of the last batch with events.

        It is the median of a batch that the next one confirms: times from the future, even a batch
        of them, say nothing about the other keys.
        """
        before = None if context.before is None else context.before.decisions.get("ages")
        reached, last = before or [MINUS_INFINITY, MINUS_INFINITY]
        found = sorted(each for parcel in arrived.parcels for each in parcel.report.medians)
        if not found:
            return [reached, last]
        rows = list(accumulate(count for _, count in found))
        median, _ = found[bisect_left(rows, rows[-1] / 2)]
        return [max(reached, min(median, last)), median]

    def _forget_before(self, reached: Micros) -> Micros:
        """Return since when keys must have updates in order not to be forgotten."""
        latest = self._plan.latest
        if latest is None or latest.forget is None or reached == MINUS_INFINITY:
            return MINUS_INFINITY
        return min(reached, self._plan.clock.now()) - latest.forget

    def _decide(self, context: VersionContext, rows: int) -> bool:
        """Return whether all events of a batch are processed, from the time they will take."""
        plan = self._plan
        if not plan.switches:
            return False
        if plan.interval is None or context.flushing:
            return self._switch.mode is QueueMode.APPEND
        work = rows * self._each * 1e6
        waiting = 0 if context.before is None else context.before.decisions["waiting"]
        is_append = self._switch.mode is QueueMode.APPEND
        backlog = work if is_append else waiting * self._each * 1e6
        rule = SwitchPolicy(backlog=int(LONGEST * plan.interval))
        self._switch = self._switch.after(work / plan.interval, int(backlog), rule)
        return self._switch.mode is QueueMode.APPEND and is_append

    def _budget(self, context: VersionContext, waves: int, reading: float) -> Micros:
        """Return the microseconds that each task may serve, given how many share a core."""
        plan = self._plan
        if context.flushing:
            return INFINITY
        if plan.budget is not None:
            return plan.budget // waves
        if plan.interval is None:
            return INFINITY
        interval = plan.interval / 1e6
        other = reading + self._overhead.expected(interval)
        rest = (1 + OVERRUN) * interval - other
        return int(1e6 * max(rest, min(other, interval)) / waves)

    def _ahead(self, context: VersionContext) -> Micros:
        """Return how long keys may be served after a version, until the next one begins."""
        plan = self._plan
        return 0 if context.flushing or plan.budget is not None else plan.interval or 0

    def _shown(self, found: ServingReport, superseded: int, budget: Micros) -> Mapping[str, Any]:
        windowed = self._plan.windowed
        return {
            **found.shown(queued=bool(self._plan.newest)),
            **({} if windowed is None else found.shown_windows(windowed.windows)),
            "supersededInTransit": superseded,
            "budgetMs": None if budget == INFINITY else round(budget / 1000, 1),
        }


def _serving_times(
    context: VersionContext, parcels: Sequence[Parcel], budget: Micros, order: Sequence[int]
) -> dict[int, ServingTime]:
    """Return the time of each task, for its shards in order: by keys that wait and arrive."""
    before = None if context.before is None else context.before.decisions.get("waits")
    known = before if before and len(before) == context.shards else [0] * context.shards
    work = Counter(dict(enumerate(known)))
    for parcel in parcels:
        for group, rows in parcel.report.load.items():
            work[context.routes[group]] += rows
    times: dict[int, ServingTime] = {}
    for shard in order:
        time = times.setdefault(context.placement[shard], ServingTime(budget, []))
        time.weights.append(1.0 + work[shard])
    return times
