"""`python -m examples lending`: a lender's figures by area and for all, rearranged while they run.

Idea: a thread writes loans into files while a local Spark runs the five operators over them as one
query with four results. Operators begin as components of their own and are fused as the rows
between them are measured; meanwhile they are also fused and split by hand, and the number of tasks
changes. From a third of the loans on, most are from one area, so that shards move to balance the
load. At the end every row is compared with DuckDB.

Invariants:
1. The results at the end of the demo are those of all loans
   (`test_oracle_the_demo_reports_what_duckdb_computes`).

References: Madsen, Zhou, Su (2016), section 2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

import icestream as ice
from examples.lending.generator import SPARK_SCHEMA, Loans
from examples.lending.offline import differences
from examples.lending.query import BY_AREA, RESULTS, lending
from examples.shared.live_page import memory_bar
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import parse_bytes
from icestream.demo.progress import (
    Progress,
    bars,
    events_bar,
    show_phases,
    show_speed,
    show_watermark,
)
from icestream.demo.replay import Replay
from icestream.demo.results import ResultFiles
from icestream.demo.running import demo_folder, demo_session, follow, wide_console

_SLACK = "1 minute"
#: hours of event time that the loans are spread over, unless a rate is given
_HOURS = 27
_FILES = 60
_FILES_PER_BATCH = 5
_TASKS = 1
_SHARDS = 4
_SHOWN = 12
#: events shown on the page
_LAST = 5


class Adaptable(Protocol):
    """The part of a running query that the demo changes."""

    def rescale(self, parallelism: int) -> None:
        """Run the shards in this many tasks."""

    def fuse(self, together: str | Sequence[Sequence[str]]) -> None:
        """Run operators in one task."""


class Turn(NamedTuple):
    """A change that is requested after a fraction of the loans."""

    after: float
    says: str
    do: Callable[[Adaptable], None]


COURSE = (
    Turn(1 / 4, "asked for 2 tasks", lambda query: query.rescale(2)),
    Turn(5 / 12, "asked to fuse partials and windows", lambda query: query.fuse(BY_AREA)),
    Turn(2 / 3, "asked for 4 tasks", lambda query: query.rescale(4)),
    Turn(3 / 4, "asked to split them again", lambda query: query.fuse("none")),
)


def demo(
    *,
    events: int = 600_000,
    memory: str = "128 MB",
    rate: int | None = None,
    seed: int = 1,
    keep: Path | None = None,
    ui: bool = False,
    console: Console | None = None,
) -> int:
    """Run the demo and show it.

    Args:
        events: how many loans to generate and process.
        memory: the budget of the query's state.
        rate: loans per second of event time; None spreads them over 27 hours.
        seed: seed of the generated stream.
        keep: a new or empty folder for loans, results and checkpoint; None for a temporary one.
        ui: whether to show the queries on a local page, too.
        console: where to show it.

    Returns:
        The exit code of the command: 0 if every row is correct.
    """
    began = time.monotonic()
    console = console or wide_console()
    if events < 1:
        msg = f"the demo needs at least 1 loan; got {events}"
        raise DefinitionError(msg)
    parse_bytes(memory)
    rate = rate or max(1, events // (_HOURS * 3600))
    seconds = max(1, events // (rate * _FILES))
    with ExitStack() as ending:
        home = ending.enter_context(demo_folder(keep, console if ui else None))
        (home / "events").mkdir()
        loans = Loans(rate=rate, seed=seed, boom=events // 3)
        replay = Replay(loans, home / "events", events, seconds=seconds)
        replay.start()
        ending.callback(replay.stop)
        console.print(f"Starting Spark; generating {events:,} loans, {rate:,} a second")
        spark = demo_session(ending)
        frame = (
            spark.readStream.schema(SPARK_SCHEMA)
            .option("maxFilesPerTrigger", _FILES_PER_BATCH)
            .parquet(str(home / "events"))
        )
        job = lending(ice.stream(frame, time="date", slack=_SLACK))
        results = {name: each.fused("measured") for name, each in job.items()}
        first, *others = results.values()
        first.explain(*others, svg=home / "job.svg")
        query = ice.start(
            *(
                each.writeStream.option("path", str(home / "results" / name))
                for name, each in results.items()
            ),
            checkpointLocation=str(home / "checkpoint"),
            memory=memory,
            shards=_SHARDS,
            parallelism=_TASKS,
        )
        ending.callback(query.stop)
        view = _View(replay, home, events, query, began)
        view.reports = lambda: query.recentProgress
        follow([query], replay, view, console)
        wrong = differences(home / "events", home / "results", view.until)
        _show_end(console, view, wrong, time.monotonic() - began)
        return int(any(wrong.values()))


class _View:
    """The view of the running query, and the changes made to it."""

    def __init__(
        self,
        replay: Replay,
        home: Path,
        events: int,
        query: Adaptable,
        began: float,
    ) -> None:
        """Start empty."""
        self.reports: Callable[[], Sequence[Mapping[str, Any]]] = list
        self.progress = Progress()
        #: requested changes, and what happened to operators, tasks and shards
        self.moves: list[str] = []
        self._replay = replay
        self._events = events
        self._query = query
        self._course = list(COURSE)
        self._files = {name: ResultFiles(home / "results" / name) for name in RESULTS}
        self._newest: dict[str, dict[str, Any]] = {}
        self._told = self._written = 0
        self._before: Mapping[str, Any] = {}
        self._began = began

    @property
    def until(self) -> Micros:
        """Return the watermark."""
        mark = self.progress.watermark
        return 0 if mark is None else round(datetime.fromisoformat(mark).timestamp() * 1_000_000)

    def look(self) -> None:
        """Update from the progress of the query; change it when it is time."""
        reports = self.reports()
        for report in reports:
            if report["version"] > self._told:
                self._told, own = report["version"], report["icestream"]
                told = changes(self._before, own)
                self.moves += [f"version {report['version']}: {each}" for each in told]
                self._before = own
        if self.progress.absorb(reports):
            self.progress.running = time.monotonic() - self._began
            self._refresh()
        done = self.progress.processed / self._events
        while self._course and done >= self._course[0].after:
            turn = self._course.pop(0)
            turn.do(self._query)
            self.moves.append(turn.says)

    def page(self) -> RenderableType:
        """Draw the page."""
        head = bars()
        head.add_row("loans", *events_bar(self.progress, self._events, self._replay.written))
        head.add_row("memory", *memory_bar(self.progress))
        head.add_row("last batch", show_phases(self.progress), "")
        for number, move in enumerate(self.moves[-_LAST:]):
            head.add_row("" if number else "happened", Text(move, no_wrap=True), "")
        return Group(head, self.table())

    def line(self) -> str:
        """Return the line, and what happened since the last one."""
        moves, self._written = self.moves[self._written :], len(self.moves)
        head = (
            f"{self.progress.processed:,} of {self._events:,} loans, "
            f"{show_speed(self.progress.speed)}, watermark {show_watermark(self.progress)}"
        )
        return "\n".join([head, *(f"  {move}" for move in moves)])

    def table(self) -> Table:
        """Draw the newest hour of some areas."""
        table = Table("area", "loans", "interest", "income", "approved", title="the newest hour")
        for area, row in sorted(self._newest.items())[:_SHOWN]:
            table.add_row(
                area,
                f"{row['loans']:,}",
                f"{row.get('rate', 0):.2%}",
                f"{row.get('income', 0):,.0f}",
                f"{row.get('approval', 0):.1%}",
            )
        return table

    def _refresh(self) -> None:
        for files in self._files.values():
            for rows in files.new():
                for row in rows.to_pylist():
                    span = row.pop("lifetime")
                    if (span["end"] - span["start"]).total_seconds() == 3600:
                        self._newest.setdefault(row.get("area", "all"), {}).update(row)


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the changes of operators, tasks and shards between two progress reports."""
    was, is_now = (_together(each) for each in (before, now))
    joined = [group for group in is_now if group not in was]
    parted = [group for group in was if not any(set(group) <= set(each) for each in is_now)]
    found = [f"fused {' + '.join(group)}" for group in joined]
    found += [f"split {' | '.join(group)}" for group in parted]
    moved = now["movedShards"]
    if moved and before["parallelism"] == now["parallelism"]:
        found.append(f"rebalanced, {moved} shards moved")
    elif moved:
        found.append(f"{now['parallelism']} tasks, {moved} shards moved")
    return found


def _together(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the operators that share tasks."""
    return [tuple(group) for group in report.get("fused", ()) if len(group) > 1]


def _show_end(console: Console, view: _View, wrong: Mapping[str, int], seconds: float) -> None:
    """Show the last figures, what moved, and the comparison with DuckDB."""
    console.print(view.line(), soft_wrap=True, highlight=False)
    console.print(view.table())
    console.print("What happened on the way:", *view.moves, sep="\n  ", highlight=False)
    for name, count in wrong.items():
        verdict = "the same as DuckDB's" if not count else f"{count} rows differ from DuckDB's"
        console.print(f"{name}: {verdict}", highlight=False)
    console.print(f"{view.progress.result_rows:,} rows in {seconds:.1f} s", highlight=False)
