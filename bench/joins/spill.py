"""Spill strategies: the rows kept in memory determine how many results come at run time.

Idea: the same five streams are joined in less memory than their state takes, once by each strategy
and once with joins that fetch what left memory. All emit the same results in the end; they differ
in how many come while the streams run, in how often state is spilled, and in how long the clean-up
takes afterwards. The paper leaves much of its setting open, so that all of a grid are run: state of
three and of ten and a half times the threshold, partitions whose rows go to one, two, eight or all
partitions of the next join, and two readings of its data (`join_inputs`). 30 % of the state is
spilled at a time.

Invariants:
1. Results at run time and of clean-up are compared with the exact join, in every run
   (`test_every_strategy_makes_the_exact_results`).
2. A claim is judged by the cases in which it holds, of all seeds and ratios
   (`test_claims_are_judged_by_the_cases_in_which_they_hold`).

Limits: one process without Spark, with the real driver. It decides after a batch, and partitions
leave with the next: resident rows, which are among the figures, exceed the threshold by up to two
batches. The threshold counts arrays and index of the joins too.

References: Liu, Zhu, Rundensteiner (2006), section 6, Figures 16 to 20 and clean-up times.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import icestream as ice
from bench.harness import scratch, workspace
from bench.joins.join_inputs import PARTITIONS, READINGS, SETTINGS, STREAMS, JoinInputs
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from icestream.operators.multi_join.spill_strategies import (
    BOTTOM_UP,
    GLOBAL_OUTPUT,
    GLOBAL_OUTPUT_AHEAD,
    GLOBAL_OUTPUT_WITH_PENALTY,
    LOCAL_OUTPUT,
    STRATEGIES,
)
from icestream.plan.events.dataflow import Dataflow, source_column
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import Source
from icestream.runtime.local import LocalQuery, Splits
from icestream.runtime.version.settings import Settings

FETCH = "fetch"
#: figures of every batch
COURSE = ("results", "resident")
#: the state of a run without spills as a multiple of the threshold
TIMES = (3.0, 10.5)
#: partitions of the next join to which the rows of one go
SPREADS = (1, 2, 8, PARTITIONS)
SCHEMAS = tuple(pa.schema([(f"{n}1", pa.int64()), (f"{n}2", pa.int64())]) for n in STREAMS)
TIME = pa.timestamp("us", tz="UTC")
SECOND = 1_000_000
#: memory in which nothing is spilled
ENOUGH = 1 << 30
#: minimum memory of the query, and what it has as a multiple of the threshold: joins also need
#: buffers, and one may grow while another shrinks
LEAST = 4 << 20
MEMORY = 2.0
#: part of the memory that is not for buffers
FOR_ROWS = 0.75


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run."""

    #: tuples of each stream
    tuples: int
    batches: int
    seeds: tuple[int, ...]
    settings: tuple[tuple[int, ...], ...]


SCALES = {
    Size.SMALL: Scale(2_400, 20, (1,), SETTINGS[:1]),
    Size.FULL: Scale(2_400, 20, (1, 2, 3), SETTINGS),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run every strategy on the same streams, in each case of the grid."""
    scale, folder = SCALES[size], scratch(workspace(), "spill")
    streams = list(product(scale.settings, SPREADS, READINGS, scale.seeds))
    progress.plan(len(streams) * (1 + len(TIMES) * (1 + len(STRATEGIES))))
    figures: dict[str, Any] = {}
    for ratios, spread, equal, seed in streams:
        inputs = JoinInputs(ratios, scale.tuples, seed, spread, equal)
        for times, found in compared(inputs, scale.batches, folder, progress):
            name = f"{group_name(times, spread, equal)}, {_ratios(ratios)}, seed {seed}"
            figures[name] = found
            progress.note(f"{name}: {_shares(found)}")
    shutil.rmtree(folder, ignore_errors=True)
    return reported(figures)


def reported(cases: Mapping[str, Any]) -> Measurement:
    """Return all cases, the medians of their groups, and the claims; courses of drawn cases."""
    drawn = {name for name, _ in _drawn(cases).values()}
    short = {
        name: {key: _without_course(part) for key, part in case.items()}
        for name, case in cases.items()
        if name not in drawn
    }
    return Measurement(
        {"groups": summarised(cases), "cases": {**cases, **short}},
        judge(cases),
    )


def _without_course(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part
    return {key: each for key, each in part.items() if key not in COURSE}


def summarised(cases: Mapping[str, Any]) -> dict[str, Any]:
    """Return, for each group, in how many cases claims hold, and medians over its cases."""
    found = {}
    for name, group in _groups(cases).items():
        found[name] = {
            "cases": len(group),
            "holds": {claim: sum(_holds(claim, case) for case in group) for claim in CLAIMS},
            "bottom_up_cleans_up_longest": sum(map(_is_longest, group)),
            "median_share": {
                each: median(case[each]["share"] for case in group) for each in (*STRATEGIES, FETCH)
            },
            "median_ratio": {
                claim: median(_ratio(case, *CLAIMS[claim]) for case in group) for claim in CLAIMS
            },
            "median_clean_up_ratio": median(
                _clean_up(case, BOTTOM_UP) / max(_clean_up(case, each) for each in GLOBAL)
                for case in group
            ),
            "median_cpu_seconds": {
                each: median(
                    case[each]["cpu_seconds"] + case[each]["clean_up_cpu_seconds"] for case in group
                )
                for each in (*STRATEGIES, FETCH)
            },
            "bytes_forced": sum(case[each]["bytesForced"] for case in group for each in STRATEGIES),
        }
    return found


def compared(
    inputs: JoinInputs, batches: int, folder: Path, progress: ProgressLog
) -> Iterator[tuple[float, dict[str, Any]]]:
    """Run streams without spills, then in less memory with each strategy and by fetching."""
    progress.step(f"{_ratios(inputs.ratios)}, seed {inputs.seed}: all in memory")
    whole = run(inputs, batches, ENOUGH, folder, strategy=BOTTOM_UP)
    state = whole["resident"][-1]
    for times in TIMES:
        threshold = state / times
        budget = max(LEAST, int(MEMORY * threshold))
        found = {
            "results": inputs.results,
            "state_bytes": state,
            "threshold": int(threshold),
            "budget": budget,
            "wrong": abs(whole["results"][-1] - inputs.results),
        }
        for strategy in (*STRATEGIES, FETCH):
            progress.step(f"{_ratios(inputs.ratios)}, seed {inputs.seed}, {times}: {strategy}")
            part = min(1.0, threshold / (FOR_ROWS * budget))
            made = run(inputs, batches, budget, folder, strategy=strategy, threshold=part)
            total = made["results"][-1] + made["late_results"]
            share = made["results"][-1] / inputs.results
            found[strategy] = {**made, "share": share, "wrong": abs(total - inputs.results)}
        yield times, found


def run(
    inputs: JoinInputs,
    batches: int,
    budget: int,
    folder: Path,
    *,
    strategy: str,
    threshold: float = 1.0,
) -> dict[str, Any]:
    """Return the course of a run: results and resident bytes by batch, spills, and clean-up."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    flow = flow_of(strategy, threshold)
    root, local = f"{folder}/run/checkpoint", f"{folder}/run/local"
    query = LocalQuery(flow, Settings(root=root, local=local, budget=budget, shards=1))
    course: dict[str, Any] = {"results": [], "resident": [], "spills": 0}
    sums = dict.fromkeys(("bytesSpilled", "bytesForced", "bytesUnranked"), 0)
    made, begin = 0, time.process_time()
    for number, batch in enumerate(inputs.batches(batches)):
        deliveries = query.driver.batch(number, _input(flow, batch, number))
        made += query.rows(deliveries).num_rows
        progress = deliveries[0].progress
        assert progress is not None
        joins = progress["icestream"].get("joins", ())
        for name in sums:
            sums[name] += sum(join[name] for join in joins)
        course["results"].append(made)
        course["resident"].append(sum(join["residentBytes"] for join in joins))
        course["spills"] = progress["icestream"].get("spills", 0)
    course["cpu_seconds"] = time.process_time() - begin
    begin = time.process_time()
    course["late_results"] = query.clean_up(last=True).num_rows
    course["clean_up_cpu_seconds"] = time.process_time() - begin
    query.close()
    return course | sums


def flow_of(strategy: str, threshold: float) -> Dataflow:
    """Return the three joins of the five streams, which spill by a strategy, or fetch."""
    from icestream.api.events import Events  # noqa: PLC0415 - listing benches needs no Spark

    a, b, c, d, e = (
        Events(FromSource(schema, source=n), {}).forever() for n, schema in enumerate(SCHEMAS)
    )
    if strategy == FETCH:
        abc = a.join(b, on=[("a1", "b1")], onPressure=FETCH).join(
            c, on=[("a1", "c1")], onPressure=FETCH
        )
        how: dict[str, Any] = {"onPressure": FETCH}
    else:
        how = {
            "onPressure": "defer",
            "strategy": strategy,
            "threshold": threshold,
            "order": "written",
            "partitions": PARTITIONS,
            "sample": 1.0,
        }
        abc = ice.join(a, b, c, on=[("a1", "b1", "c1")], **how)
    made = abc.join(d, on=[("c2", "d1")], **how).join(e, on=[("d2", "e1")], **how)
    sources = tuple(Source(name, 0) for name in STREAMS)
    numbers = {number: number for number in range(len(STREAMS))}
    return compiled(((made._node, "append"),), numbers, sources, SCHEMAS, TIME)


def _input(flow: Dataflow, batch: Mapping[str, pa.RecordBatch], number: int) -> Splits:
    """Return the rows of all streams as one split."""
    batches = []
    for source, stream in enumerate(STREAMS):
        rows = batch[stream]
        count = rows.num_rows
        mine = {source_column(source, place): rows.column(place) for place in range(2)}
        times = pa.array(np.full(count, number * SECOND)).cast(TIME)
        columns = [times, pa.array(np.full(count, source, dtype=np.int32))]
        columns += [
            mine.get(each.name, pa.nulls(count, each.type)) for each in list(flow.batch_schema)[2:]
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema))
    return [batches]


#: claims of the paper: the strategies of which one is better in all cases than the others
CLAIMS = {
    "global output over local output and bottom up": (GLOBAL_OUTPUT, (LOCAL_OUTPUT, BOTTOM_UP)),
    "penalty over global output": (GLOBAL_OUTPUT_WITH_PENALTY, (GLOBAL_OUTPUT,)),
    "ahead over global output (not in the paper)": (GLOBAL_OUTPUT_AHEAD, (GLOBAL_OUTPUT,)),
}
#: strategies whose clean-up is compared with that after bottom up
GLOBAL = (GLOBAL_OUTPUT, GLOBAL_OUTPUT_WITH_PENALTY)


def judge(cases: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims, for each group of cases."""
    bars = []
    for name, group in _groups(cases).items():
        for claim in CLAIMS:
            holds = sum(_holds(claim, case) for case in group)
            bars.append(Bar.at_least(f"{name}: {claim}, cases", len(group), holds))
        longest = sum(map(_is_longest, group))
        bars.append(
            Bar.at_least(f"{name}: bottom up cleans up longest, cases", len(group), longest)
        )
    runs = [case[each] for case in cases.values() for each in (*STRATEGIES, FETCH)]
    wrong = sum(run["wrong"] for run in (*runs, *cases.values()))
    return (
        *bars,
        Bar.at_most("bytes forced by another rule", 0, sum(run["bytesUnranked"] for run in runs)),
        Bar.at_most("wrong results", 0, wrong),
    )


def _groups(cases: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the cases that differ in ratios and seed only."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for name, case in cases.items():
        groups.setdefault(name.split(", ratios")[0], []).append(case)
    return groups


def _holds(claim: str, case: Mapping[str, Any]) -> bool:
    return _ratio(case, *CLAIMS[claim]) >= 1


def _is_longest(case: Mapping[str, Any]) -> bool:
    return all(_clean_up(case, BOTTOM_UP) >= _clean_up(case, other) for other in GLOBAL)


def _ratio(case: Mapping[str, Any], strategy: str, others: tuple[str, ...]) -> float:
    best = max(case[other]["share"] for other in others)
    return float(case[strategy]["share"] / best) if best else 1.0


def _clean_up(case: Mapping[str, Any], strategy: str) -> float:
    return float(case[strategy]["clean_up_cpu_seconds"])


def group_name(times: float, spread: int, equal: str) -> str:
    """Return the name of the cases that differ in ratios and seed only."""
    ways = {1: "one to one", PARTITIONS: "one to all"}.get(spread, f"one to {spread}")
    return f"state {times:g} times the threshold, {ways}, equal {equal}"


def _ratios(ratios: tuple[int, ...]) -> str:
    return "ratios " + ":".join(map(str, ratios))


def _shares(case: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{each} {case[each]['share']:.0%} ({case[each]['bytesForced']:,} bytes forced)"
        for each in (*STRATEGIES, FETCH)
    )


def _drawn(cases: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the first case of each number of times, whose course is drawn."""
    first: dict[str, tuple[str, Any]] = {}
    for name, case in cases.items():
        first.setdefault(name.split(",")[0], (name, case))
    return first


def plot(figures: Figures, target: Path) -> None:
    """Draw results, resident bytes and clean-up of two cases, and the shares of all groups."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    first = _drawn(figures["cases"])
    drawing = Figure(figsize=(5 * len(first), 13), layout="constrained")
    axes = drawing.subplots(4, len(first), squeeze=False)
    for column, (times, (name, case)) in enumerate(first.items()):
        output, memory, cleaning, shares = axes[:, column]
        for strategy in (*STRATEGIES, FETCH):
            output.plot(case[strategy]["results"], label=strategy.replace("_", " "))
        output.set_title(name, fontsize=7)
        output.set(xlabel="batch", ylabel="results at run time")
        for strategy in (BOTTOM_UP, *GLOBAL, GLOBAL_OUTPUT_AHEAD):
            spills = case[strategy]["spills"]
            resident = [held / case["threshold"] for held in case[strategy]["resident"]]
            memory.plot(resident, label=f"{strategy.replace('_', ' ')}: {spills} spills")
        memory.axhline(1, linestyle="--", color="grey")
        memory.set(xlabel="batch", ylabel="resident rows / threshold", ylim=(0, None))
        memory.legend(fontsize=7)
        names = [strategy.replace("_", "\n") for strategy in STRATEGIES]
        cleaning.bar(names, [_clean_up(case, each) for each in STRATEGIES])
        cleaning.set(ylabel="clean-up, processor s")
        cleaning.tick_params(axis="x", labelsize=6)
        groups = {
            name.split(", ", 1)[1].replace(", ", "\n"): group["median_share"]
            for name, group in figures["groups"].items()
            if name.startswith(f"{times},")
        }
        for strategy in (*STRATEGIES, FETCH):
            points = [share[strategy] for share in groups.values()]
            shares.plot(list(groups), points, "o:", markersize=4, label=strategy.replace("_", " "))
        shares.set(ylabel="share of results at run time, medians", ylim=(0, 1.05))
        shares.tick_params(axis="x", labelsize=5)
    axes[0, 0].legend(fontsize=7)
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=120)


BENCH = Bench(
    "spill",
    "in little memory, what is spilled by productivity costs the fewest results",
    measure,
    plot,
)
