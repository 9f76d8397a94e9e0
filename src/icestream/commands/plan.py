"""`icestream plan`: estimate what a query will use, and compare estimates with past runs.

Idea: a statement or the results of a program become plans, and `plan.forecast` estimates what they
use. Past runs are read from the history that every query stores in its checkpoint: the estimate at
the time the storage plan was chosen, and the size of the log in the last version of each run. If
there was no estimate, the forecast is computed now, for the rate and the groups of the run.

Invariants:
1. A program is imported, not executed as `__main__`
   (`test_a_program_is_planned_and_not_started`).
2. The ratio is that of the last version of a run
   (`test_past_runs_report_how_far_off_the_estimate_was`).
3. Runs of any query can be compared with its forecast
   (`test_a_run_without_an_estimate_is_held_against_the_forecast`).

Limits: a forecast assumes that the stream has run for as long as its events live; the log of a
shorter run is smaller.
"""

from __future__ import annotations

import math
import runpy
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import icestream as ice
from icestream.api.update_result import UpdateResult
from icestream.commands.sql import statement
from icestream.core.errors import DefinitionError
from icestream.core.units import format_bytes, parse_bytes
from icestream.dashboard.history_reader import HistoryReader
from icestream.plan.computation import Computation
from icestream.plan.forecast import Forecast, StreamLoad, forecast
from icestream.runtime.version.history import PROGRESS, START, history_folder


@dataclass(frozen=True)
class PastRun:
    """What a run of a query used, and the estimate."""

    started: str
    versions: int
    #: what the log stores for windows on a grid; `-` where it was not chosen
    store: str
    #: estimated bytes of log and rows
    estimated: int
    #: bytes of the log at the end
    log: int

    @property
    def ratio(self) -> float:
        """Return the measured size as a multiple of the estimate."""
        return self.log / self.estimated if self.estimated else math.inf


def planned(query: str, columns: str | None, time: str | None) -> dict[str, Computation]:
    """Return the plans to forecast: of a statement, of a file with one, or of a program."""
    if query.endswith(".py"):
        return _of_program(Path(query))
    text = _text_of(Path(query)) if query.endswith((".sql", ".cql")) else query
    if columns is None:
        msg = 'give the columns of the stream: --columns "at timestamp, shop string"'
        raise DefinitionError(msg)
    spark = ice.local_session(app_name="icestream plan")
    with tempfile.TemporaryDirectory() as folder:
        frame = ice.files(spark, folder, schema=columns)
        stamps = [name for name, kind in frame.dtypes if kind.startswith("timestamp")]
        if time is None and len(stamps) != 1:
            msg = f"give the column with the event time: --time; timestamps are {stamps}"
            raise DefinitionError(msg)
        result = statement(text, ice.stream(frame, time=time or stamps[0]))
        return {"statement": computation(result)}


def computation(result: object) -> Computation:
    """Return the planned computation of a result that has not been started."""
    if isinstance(result, ice.Result | UpdateResult | ice.Events | ice.Tuples):
        return result.writeStream._built.plan
    msg = f"a {type(result).__name__} is not a result of a query: it has no writeStream"
    raise DefinitionError(msg)


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        msg = f"the statement in {file} cannot be read: {reason}"
        raise DefinitionError(msg) from None


def _of_program(program: Path) -> dict[str, Computation]:
    if not program.is_file():
        msg = f"there is no program {program}"
        raise DefinitionError(msg)
    names = runpy.run_path(str(program), run_name="planned")
    found = {
        name: computation(value)
        for name, value in names.items()
        if not name.startswith("_")
        and hasattr(type(value), "writeStream")
        and type(value).__module__.startswith("icestream.")
    }
    if not found:
        msg = (
            f"{program} has no results to plan: assign them to names outside of functions, and "
            'start queries only under `if __name__ == "__main__":`'
        )
        raise DefinitionError(msg)
    return found


def forecast_report(
    plans: Mapping[str, Computation], load: StreamLoad, memory: str | None
) -> dict[str, Any]:
    """Return the forecasts of plans as JSON."""
    budget = None if memory is None else parse_bytes(memory)
    made = {name: forecast(plan, load) for name, plan in plans.items()}
    queries = {name: [_described(each, budget) for each in parts] for name, parts in made.items()}
    return {"load": asdict(load), "budget": budget, "queries": queries}


def _described(each: Forecast, budget: int | None) -> dict[str, Any]:
    return {
        "operator": each.operator,
        "memoryBytes": round(each.memory),
        "diskBytes": round(each.disk),
        "requestsPerSecond": round(each.traffic.requests, 2),
        "bytesPerSecond": round(each.traffic.bytes),
        "fits": None if budget is None else each.memory <= budget,
        "tuplesPerWindow": None if each.per_window is None else [*map(round, each.per_window)],
        "note": each.note,
    }


def past_runs(checkpoint: str, plan: Computation | None = None) -> list[PastRun]:
    """Return the past runs of a checkpoint to compare a plan with, oldest first.

    Given the plan of the query, runs without an estimate of their own get one.
    """
    folder = history_folder(checkpoint)
    if not folder.is_dir():
        msg = f"{checkpoint} has no history: give the checkpointLocation of a query"
        raise DefinitionError(msg)
    runs: list[list[dict[str, Any]]] = []
    begins: list[str] = []
    for event in HistoryReader(folder).look():
        if event.get("kind") == START:
            runs.append([])
            begins.append(str(event.get("timestamp")))
        elif event.get("kind") == PROGRESS and runs:
            progress = event.get("icestream") or {}
            runs[-1].append({**progress, "rows": event.get("numInputRows") or 0})
    found = (_past(begin, run, plan) for begin, run in zip(begins, runs, strict=True) if run)
    return [each for each in found if each is not None]


def _past(started: str, versions: list[dict[str, Any]], plan: Computation | None) -> PastRun | None:
    last = versions[-1]
    estimated, store = last.get("estimatedBytes"), str(last.get("store"))
    log = int(last.get("logBytes", 0))
    if isinstance(estimated, dict) and store in estimated:
        return PastRun(started, len(versions), store, round(estimated[store]), log)
    load = _had(versions)
    if plan is None or load is None:
        return None
    disk = sum(each.disk for each in forecast(plan, load))
    return PastRun(started, len(versions), "-", round(disk), log)


def _had(versions: list[dict[str, Any]]) -> StreamLoad | None:
    """Return the load of a run; None if its events give no rate."""
    seen = [
        (datetime.fromisoformat(progress["latestEventTime"]).timestamp(), progress["rows"])
        for progress in versions
        if isinstance(progress.get("latestEventTime"), str)
    ]
    if not seen or seen[-1][0] <= seen[0][0]:
        return None
    rate = sum(rows for _, rows in seen[1:]) / (seen[-1][0] - seen[0][0])
    return StreamLoad(rate, max(1, versions[-1].get("groups") or 1)) if rate else None


def plan_text(progress: Mapping[str, Any]) -> str:
    """Return forecasts of plans as text."""
    lines = []
    for name, operators in progress["queries"].items():
        lines += [name]
        for each in operators:
            lines += [
                f"  {each['operator']}",
                f"    memory  {format_bytes(each['memoryBytes'])} with all groups in it"
                + _fitting(each["memoryBytes"], progress["budget"]),
                f"    disk    {format_bytes(each['diskBytes'])}",
                f"    moves   {format_bytes(each['bytesPerSecond'])} in "
                f"{each['requestsPerSecond']:,.1f} requests, per second of event time",
                f"    {each['note']}",
            ]
    return "\n".join(lines)


def _fitting(memory: float, budget: int | None) -> str:
    if budget is None:
        return ""
    if memory <= budget:
        return f": fits in {format_bytes(budget)}"
    part = budget / memory
    return f": {part:.0%} of it fits in {format_bytes(budget)}, the rest is read when needed"


def past_text(runs: list[PastRun]) -> str:
    """Return estimates of plans and past runs as text."""
    if not runs:
        return (
            "no run of this checkpoint has an estimate, because it has no windows on a grid: name "
            "the query too, to compare its forecast with its runs"
        )
    lines = [
        f"{'started':<19} {'versions':>8} {'plan':<7} {'estimated':>10} {'log':>10} {'ratio':>6}"
    ]
    lines += [
        f"{each.started[:19]:<19} {each.versions:>8} {each.store:<7} "
        f"{format_bytes(each.estimated):>10} {format_bytes(each.log):>10} {each.ratio:>6.2f}"
        for each in runs
    ]
    return "\n".join(lines)
