"""Staleness by schedule and load: everything simulated over the real queues.

Idea: single keys and ten keys under rising load (what update queues save, and how close the two
kinds of staleness stay), ten keys of which some are slow, and all streams of `staleness_streams`
under IN-PLACE, LINECUTTING and INDEX, with rates that are known and rates that are learnt. Also,
exact optima of small cases. Time is simulated, so figures are the same on every machine, except for
the speed of the simulation itself.

Invariants:
1. Two measurements give the same figures (`test_figures_are_the_same_every_time`).

References: figures 5, 7 and 9 and section 5 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.research.queue_optimum import SmallSystem, independent, longest_waiting
from bench.research.queue_optimum import one_per_tick as one_of
from bench.research.queue_simulation import Outcome, simulate
from bench.research.workloads import UpdateWorkload, equal, in_turn, one_per_tick, slow_and_fast
from bench.updates.staleness_streams import SEED, Maker, clockwork, streams

#: microseconds per service
COST = 10_000
LOADS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
QUEUES = ("append", "shedding", "fifo", "inplace")
#: of ten keys
SLOW = tuple(range(11))
RATIOS = (50, 10)
SLOW_LOAD = 5.0
STREAM_LOADS = (0.7, 0.95, 1.5, 2.0, 5.0, 20.0)
#: of one simulation
SERVICES = {Size.SMALL: 20_000, Size.FULL: 100_000}
#: fraction of a run that is not measured; more if keys tick, which has to be learnt
WARM_UP = 0.05
LEARNING = 0.3
#: loads at which INDEX is compared with LINECUTTING for skewed rates, and for ticks
SKEW_LOADS = (1.5, 2.0, 5.0)
TICK_LOADS = (1.5, 2.0)
OPTIMA = {
    "2 keys, one update per tick, cost 2": SmallSystem(2, 2, 10, one_of([0.5] * 2)),
    "3 keys, one update per tick, cost 2": SmallSystem(3, 2, 7, one_of([1 / 3] * 3)),
    "3 keys, each 1 in 5, cost 3": SmallSystem(3, 3, 14, independent([0.2] * 3)),
    "4 keys, each 1 in 7, cost 3": SmallSystem(4, 3, 10, independent([1 / 7] * 4)),
}
#: cases with few enough streams to enumerate them
_FORESEEN = 3_000


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Simulate everything."""
    made = streams()
    progress.plan(4 + len(made))
    services = SERVICES[size]
    progress.step("load")
    by_load = {
        "one key": _over_loads(1, services),
        "ten keys": _over_loads(10, services),
    }
    progress.step("slow keys")
    slow = {str(ratio): _over_slow(ratio, services) for ratio in RATIOS}
    compared = {}
    for name, maker in made.items():
        progress.step(name)
        compared[name] = [_compared(maker, services, load) for load in STREAM_LOADS]
    progress.step("clockwork")
    even = {
        name: [_compared(maker, services, load, LEARNING) for load in STREAM_LOADS]
        for name, maker in clockwork().items()
    }
    progress.step("optima")
    figures: dict[str, Any] = {
        "by load": by_load,
        "slow keys": slow,
        "streams": compared,
        "clockwork": even,
        "optima": {name: _optimum(case) for name, case in OPTIMA.items()},
        "events per second": _speed(services),
    }
    return Measurement(figures, bars(figures))


def bars(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the bars."""
    inside = [
        value for rows in figures["by load"].values() for row in rows for value in row["bound"]
    ]
    ratios = figures["slow keys"]["50"]["linecutting"]
    largest = max(SLOW, key=lambda count: ratios[count])
    streams_found: Mapping[str, Sequence[Mapping[str, Any]]] = figures["streams"]
    gains = _gains(streams_found)
    ticks = [name for name in streams_found if name.startswith("ticks")] or ["market"]
    return (
        Bar.at_least("(application - queue - wait * cost) / (cost^2 / 2), least", 0.0, min(inside)),
        Bar.at_most(
            "(application - queue - wait * cost) / (cost^2 / 2), most", 1.0 + 1e-9, max(inside)
        ),
        Bar.at_most(
            "IN-PLACE over the optimum, equal rates",
            1.0 + 1e-9,
            max(row["in place"] / row["least"] for row in figures["optima"].values()),
        ),
        Bar.at_most(
            "LINECUTTING against IN-PLACE, no or only slow keys: off 1 by",
            0.01,
            max(abs(ratios[0] - 1), abs(ratios[10] - 1)),
        ),
        Bar("slow keys of 10 with the largest benefit", "8", largest, largest == 8),
        Bar.at_least("LINECUTTING's benefit at 8 slow keys, 50:1", 1.2, ratios[8]),
        Bar.at_least(
            f"INDEX over LINECUTTING, Zipf 0.9, worst of loads {_told(SKEW_LOADS)}",
            1.1,
            _worst_gain(streams_found, ["Poisson, Zipf 0.9"], SKEW_LOADS),
        ),
        Bar.at_least(
            f"INDEX over LINECUTTING, {ticks[0]}, worst of loads {_told(TICK_LOADS)}",
            1.1,
            _worst_gain(streams_found, ticks, TICK_LOADS),
        ),
        Bar.at_least("INDEX over LINECUTTING, worst of all streams and loads", 0.99, min(gains)),
        Bar.at_least(
            "INDEX over LINECUTTING, worst of keys that tick like clocks",
            0.99,
            min(_gains(figures["clockwork"])),
        ),
        Bar.at_least("simulated events per second", 1e6, figures["events per second"]),
    )


def _told(loads: Sequence[float]) -> str:
    return ", ".join(f"{load:g}" for load in loads)


def _worst_gain(
    found: Mapping[str, Sequence[Mapping[str, Any]]], names: Sequence[str], loads: Sequence[float]
) -> float:
    """Return the smallest gain of INDEX in staleness, with rates known or learnt."""
    return min(
        float(row["linecutting"][how] / row["index"][how])
        for name in names
        for row in found[name]
        for how in ("known", "learnt")
        if row["load"] in loads
    )


# -- simulations ----------------------------------------------------------------------------


def _updates(services: int, load: float) -> int:
    """Return the updates that lead to `services` services."""
    return round(services * max(load, 1.0))


def _over_loads(keys: int, services: int) -> list[dict[str, Any]]:
    """Run every queue under rising load; staleness is counted in arriving updates."""
    rows = []
    for load in LOADS:
        updates, gap = _updates(services, load), COST / load
        stream = (
            in_turn(1, updates, gap) if keys == 1 else one_per_tick(equal(keys), updates, gap, SEED)
        )
        found = {name: simulate(stream, COST, name) for name in QUEUES}
        rows.append(
            {
                "load": load,
                "queue": {name: each.queue.average / gap for name, each in found.items()},
                "application": {
                    name: each.application.average / gap for name, each in found.items()
                },
                "bound": [_place_in_bound(stream, name) for name in ("fifo", "inplace")],
            }
        )
    return rows


def _place_in_bound(stream: UpdateWorkload, schedule: str) -> float:
    """Return the position of the application's staleness between its bounds, 0 to 1."""
    until = stream.until + COST * (stream.key_count + 2)
    found = simulate(stream, COST, schedule, until=until)
    services = found.services
    apart = (found.application.average - found.queue.average) * until * stream.key_count
    over = apart - float((services.wait * services.cost).sum())
    return over / (float((services.cost**2).sum()) / 2)


def _over_slow(ratio: float, services: int) -> dict[str, list[float]]:
    """Return the queue's staleness under IN-PLACE relative to others, by number of slow keys."""
    found: dict[str, list[float]] = {"linecutting": [], "index": []}
    updates = _updates(services, SLOW_LOAD)
    for slow in SLOW:
        shares = slow_and_fast(10, slow, ratio)
        stream = one_per_tick(shares, updates, COST / SLOW_LOAD, SEED)
        base = _run(stream, "inplace", None).queue.average
        for name, ratios in found.items():
            # LINECUTTING tests the rate itself: here it is known
            rates = shares * SLOW_LOAD / COST
            ratios.append(base / _run(stream, name, rates).queue.average)
    return found


def _gains(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[float]:
    """Return the staleness of LINECUTTING relative to INDEX, for all streams and loads."""
    return [
        row["linecutting"][how] / row["index"][how]
        for rows in found.values()
        for row in rows
        for how in ("known", "learnt")
        if row["index"][how] > 0
    ]


def _compared(maker: Maker, services: int, load: float, warm_up: float = WARM_UP) -> dict[str, Any]:
    """Run three schedules over a stream, with rates known and learnt; staleness is in services."""
    stream = maker(_updates(services, load), COST / load)
    row: dict[str, Any] = {
        "load": load,
        "inplace": _run(stream, "inplace", None, warm_up).queue.average,
    }
    row["inplace"] /= COST
    for name in ("linecutting", "index"):
        known, learnt = (_run(stream, name, rates, warm_up) for rates in (stream.rates, None))
        row[name] = {
            "known": known.queue.average / COST,
            "learnt": learnt.queue.average / COST,
            "application": learnt.application.average / COST,
        }
    return row


def _run(stream: UpdateWorkload, schedule: str, rates: Any, warm_up: float = WARM_UP) -> Outcome:
    return simulate(stream, COST, schedule, rates=rates, warm_up=int(stream.until * warm_up))


def _optimum(case: SmallSystem) -> dict[str, float | None]:
    """Return the areas of a small case, by class of schedule."""
    streams_of = len(case.law) ** case.horizon
    return {
        "in place": case.of_rule(longest_waiting),
        "least": case.least(),
        "idling": case.least(idling=True),
        "foreseen": case.foreseen() if streams_of <= _FORESEEN else None,
    }


def _speed(services: int) -> float:
    """Return arrivals and services per processor second of one simulation, compiled and warm."""
    stream = one_per_tick(equal(1_000), 10 * services, COST / 2, SEED)
    best = 0.0
    for _ in range(3):
        began = time.process_time()
        found = simulate(stream, COST, "inplace")
        took = time.process_time() - began
        best = max(best, (len(stream) + len(found.services.key)) / took)
    return best


# -- drawing ---------------------------------------------------------------------------------


def plot(figures: Figures, target: Path) -> None:
    """Draw staleness over load, over slow keys, and the gain of INDEX over streams and loads."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(13, 11), layout="constrained")
    panels = drawing.subplots(3, 2)
    for row, (name, rows) in zip(panels[:2], figures["by load"].items(), strict=True):
        kinds, queues = row
        loads = [each["load"] for each in rows]
        for kind, style in (("application", "o-"), ("queue", "s--")):
            values = [each[kind]["inplace"] for each in rows]
            kinds.plot(loads, values, style, label=f"{kind} staleness")
        kinds.set(title=f"{name}: two kinds of staleness", xlabel="load", ylabel="updates")
        for queue in QUEUES:
            queues.plot(loads, [each["application"][queue] for each in rows], "o-", label=queue)
        queues.set(title=f"{name}: queues", xlabel="load", ylabel="updates", yscale="log")
        for panel in row:
            panel.legend(fontsize=8)
    cutting, gain = panels[2]
    for ratio, found in figures["slow keys"].items():
        for name, style in (("linecutting", "o-"), ("index", "s--")):
            cutting.plot(SLOW, found[name], style, label=f"{name}, {ratio}:1")
    cutting.axhline(1, color="grey", linewidth=0.8)
    title = f"IN-PLACE's staleness by that of others, load {SLOW_LOAD:g}"
    cutting.set(title=title, xlabel="slow keys of 10")
    cutting.legend(fontsize=8)
    for name, rows in figures["streams"].items():
        kept = [each for each in rows if each["index"]["learnt"] > 0]
        values = [each["inplace"] / each["index"]["learnt"] for each in kept]
        gain.plot([each["load"] for each in kept], values, "o-", label=name)
    gain.axhline(1, color="grey", linewidth=0.8)
    gain.set(title="IN-PLACE's staleness by INDEX's", xlabel="load", xscale="log")
    gain.legend(fontsize=6, ncols=2)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)


BENCH = Bench(
    "staleness",
    "update queues stay fresh under any load, and INDEX is fresher than LINECUTTING",
    measure,
    plot,
)
