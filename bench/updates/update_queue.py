"""Update queues: operations per second with a million keys, and the memory of waiting keys.

Idea: *rates* drives a queue of each schedule with batches of random keys, half as many dequeues as
enqueues, and times both. *Memory* repeats the comparison of on-demand paging with a manager that
never frees a location: 100 keys of uniform to very skewed rates, 10 results per second, input
from twice to a hundred times that, until 1000 results were delivered. *Bursts* counts pages while
load comes and goes. *Spilled* has eight times the keys that fit (`bench.updates.spilled_keys`).

Limits: time is wall-clock time, so a loaded machine measures low; rates per second of processor
time are reported too.

References: section 7.3, Figures 16 and 17, of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.research.append_queue import AppendQueue
from bench.updates.spilled_keys import (
    BATCH,
    SCHEMA,
    VERSIONS,
    identities,
    idle_key_bytes,
    rows_of,
    spilled,
)
from icestream.state.queue.order import SCHEDULES
from icestream.state.queue.pages import PagePool
from icestream.state.queue.queue import UpdateQueue

KEYS = 1_000_000
ENQUEUES = 5_000_000
DEQUEUES = 2_000_000
#: with eight times the keys that fit
SPILLED_ENQUEUES = 1_000_000
SPILLED_DEQUEUES = 500_000
#: bytes of a key in memory that does not wait
IDLE_BYTES = 160

#: of the comparison of memory managers: keys, results per second and in all, bytes of a page
WATCHED = 100
SERVED = 10
RESULTS = 1_000
SMALL_PAGE = 256
SKEWS = (0.0, 0.3, 0.6, 0.9)
SECOND = 1_000_000
#: schedules whose keys spill: one with a fixed order of keys, and one without
SPILLED = ("inplace", "fifo")


@dataclass(frozen=True, slots=True)
class QueueRun:
    """The size of a measurement."""

    batches: int
    rates: tuple[int, ...]
    #: batches with more keys than fit
    spilled: int


RUNS = {
    Size.SMALL: QueueRun(60, (20, 100, 1000), 8),
    Size.FULL: QueueRun(400, (20, 50, 100, 200, 500, 1000), 60),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Measure rates of every schedule, memory of both managers, and pages through bursts."""
    run = RUNS[size]
    progress.plan(len(SCHEDULES) + 4)
    rates = []
    for schedule in (*SCHEDULES, "append"):
        progress.step(f"a million keys, {schedule}")
        rates.append(operations(schedule, run.batches))
    progress.step("on-demand paging and naive locations")
    memory: list[dict[str, Any]] = [
        {
            "skew": skew,
            "rate": rate,
            "manager": "naive" if naive else "on demand",
            **usage(skew, rate, naive=naive),
        }
        for skew in SKEWS
        for rate in run.rates
        for naive in (False, True)
    ]
    progress.step("pages through bursts")
    pages = {name: bursts(naive=name == "naive") for name in ("on demand", "naive")}
    progress.step("eight times the keys that fit")
    beyond = [
        spilled(schedule, run.spilled, version) for schedule in SPILLED for version in VERSIONS
    ]
    idle = idle_key_bytes()
    on_demand = [row for row in memory if row["manager"] == "on demand"]
    updating = [row for row in rates if row["schedule"] != "append"]
    return Measurement(
        {
            "rates": rates,
            "memory": memory,
            "pages": pages,
            "spilled": beyond,
            "bytes of an idle key": idle,
        },
        (
            Bar.at_least(
                "enqueues per second, every schedule",
                ENQUEUES,
                min(row["enqueues_per_second"] for row in updating),
            ),
            Bar.at_least(
                "dequeues per second, every schedule",
                DEQUEUES,
                min(row["dequeues_per_second"] for row in updating),
            ),
            Bar.at_least(
                "effective use of locations, every run",
                1.0,
                min(row["effective_use"] for row in on_demand),
            ),
            Bar.at_most("pages held after a burst", 0, pages["on demand"][-1]),
            Bar.at_least(
                "enqueues per processor second, eight times the keys that fit",
                SPILLED_ENQUEUES,
                min(row["enqueues_per_processor_second"] for row in beyond),
            ),
            Bar.at_least(
                "dequeues per processor second, eight times the keys that fit",
                SPILLED_DEQUEUES,
                min(row["dequeues_per_processor_second"] for row in beyond),
            ),
            Bar.at_most("bytes of an idle key in memory", IDLE_BYTES, idle),
        ),
    )


def operations(schedule: str, batches: int, keys: int = KEYS) -> dict[str, Any]:
    """Time enqueues and dequeues of a queue, in batches of random keys, once it is warm."""
    dice = np.random.default_rng(17)
    known = identities(keys)
    queue: UpdateQueue | AppendQueue
    if schedule == "append":
        queue = AppendQueue(SCHEMA, capacity=keys)
    else:
        queue = UpdateQueue(SCHEMA, schedule=schedule, cost=1, capacity=keys)
    queue.cells.register(known, known)
    clock, dequeued = 0, 0
    #: seconds of enqueues and of dequeues, wall clock and processor
    spent = np.zeros((2, 2))
    for number in range(-max(4, batches // 4), batches):
        id_high = known[dice.integers(0, keys, BATCH)]
        arrived = clock + np.arange(BATCH)
        clock += BATCH
        rows = rows_of(arrived)
        times = [_clocks()]
        queue.enqueue(id_high, id_high, arrived, rows)
        times.append(_clocks())
        served = queue.dequeue(BATCH // 2, clock)
        times.append(_clocks())
        if number >= 0:
            spent += np.diff(times, axis=0)
            dequeued += len(served)
    rates = np.array([[BATCH * batches], [dequeued]]) / spent
    return {
        "schedule": schedule,
        "keys": keys,
        "enqueues_per_second": float(rates[0, 0]),
        "dequeues_per_second": float(rates[1, 0]),
        "enqueues_per_processor_second": float(rates[0, 1]),
        "dequeues_per_processor_second": float(rates[1, 1]),
        "waiting": len(queue),
        "pages": queue.pages.pages,
    }


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def usage(skew: float, rate: int, *, naive: bool, results: int = RESULTS) -> dict[str, float]:
    """Serve ten keys a second of an input of `rate` updates; return the average memory use."""
    dice = np.random.default_rng(5)
    known = identities(WATCHED)
    weights = np.arange(1, WATCHED + 1) ** -skew
    queue = UpdateQueue(SCHEMA, pool=PagePool(page_bytes=SMALL_PAGE))
    turn = SECOND // SERVED
    per_turn = rate // SERVED
    taken, effective, pages = [], [], []
    for number in range(results):
        id_high = known[dice.choice(WATCHED, per_turn, p=weights / weights.sum())]
        arrived = number * turn + np.arange(per_turn) * turn // per_turn
        queue.enqueue(id_high, id_high, arrived, rows_of(arrived))
        queue.dequeue(1, (number + 1) * turn)
        taken.append(queue.keys if naive else queue.pages.used)
        pages.append(_pages(queue, naive=naive))
        effective.append(len(queue) / queue.keys if naive else queue.effective_use)
    return {
        "locations": float(np.mean(taken)),
        "pages": float(np.mean(pages)),
        "effective_use": float(np.mean(effective)),
    }


def bursts(*, naive: bool, keys: int = 20_000, steps: int = 240) -> list[int]:
    """Count pages while three bursts come, each followed by enough quiet time to drain it."""
    dice = np.random.default_rng(11)
    known = identities(keys)
    queue = UpdateQueue(SCHEMA, pool=PagePool(page_bytes=4096))
    counts = []
    for step in range(steps):
        is_burst = step % (steps // 3) < steps // 12
        count = 2_000 if is_burst else 50
        id_high = known[dice.integers(0, keys, count)]
        arrived = np.full(count, step * SECOND)
        queue.enqueue(id_high, id_high, arrived, rows_of(arrived))
        queue.dequeue(500, step * SECOND)
        counts.append(_pages(queue, naive=naive))
    queue.dequeue(len(queue), steps * SECOND)
    return [*counts, _pages(queue, naive=naive)]


def _pages(queue: UpdateQueue, *, naive: bool) -> int:
    """Count pages; a naive queue has a location for every key that it ever had."""
    return -(-queue.keys // queue.pages.per_page) if naive else queue.pages.pages


def plot(figures: Figures, target: Path) -> None:
    """Draw effective use and locations over skew and load, pages through bursts, and rates."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(12, 6), layout="constrained")
    axes = drawing.subplots(2, 3)
    memory = figures["memory"]
    for column, (field, label) in enumerate((("skew", "skew (theta)"), ("rate", "load factor"))):
        for row, (what, title) in enumerate(
            (("effective_use", "effective use of locations"), ("locations", "locations used"))
        ):
            for manager in ("on demand", "naive"):
                found = [each for each in memory if each["manager"] == manager]
                places = sorted({each[field] for each in found})
                means = [np.mean([e[what] for e in found if e[field] == x]) for x in places]
                shown = [x / SERVED for x in places] if field == "rate" else places
                axes[row][column].plot(shown, means, marker="o", label=manager)
            axes[row][column].set(xlabel=label, title=title, ylim=(0, None))
            axes[row][column].legend(fontsize=8)
    for column in (axes[0][1], axes[1][1]):
        column.set_xscale("log")
    for manager, counts in figures["pages"].items():
        axes[0][2].plot(counts, label=manager)
    axes[0][2].set(xlabel="seconds", title="pages through three bursts", ylim=(0, None))
    axes[0][2].legend(fontsize=8)
    rates = figures["rates"]
    numbers = np.arange(len(rates))
    for shift, what in ((-0.2, "enqueues_per_second"), (0.2, "dequeues_per_second")):
        label = what.split("_")[0]
        axes[1][2].bar(numbers + shift, [row[what] / 1e6 for row in rates], 0.4, label=label)
    axes[1][2].set_xticks(numbers, [row["schedule"] for row in rates], fontsize=8)
    axes[1][2].set(title="million operations per second, a million keys")
    axes[1][2].legend(fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


BENCH = Bench(
    "update-queue",
    "a queue of a million keys takes 5 million updates a second and memory only for what waits",
    measure,
    plot,
)
