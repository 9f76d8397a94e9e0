"""`python -m bench`: progress while it runs, then a table of figures and one of bars.

Invariants:
1. The exit code is 0 only if every bar holds
   (`test_the_exit_code_reports_whether_every_bar_holds`).
2. The JSON file contains what the tables show (`test_the_json_file_holds_the_report`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from bench.harness import BenchReport, run
from bench.registry import Size, benches, find
from icestream.core.errors import DefinitionError

#: every bar holds
HELD = 0
#: a bar does not hold
MISSED = 1

#: values of a list that are shown
_SHOWN = 8


class Display:
    """Progress as one moving line, with notes above it."""

    def __init__(self, console: Console) -> None:
        """Draw on a console."""
        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._bars.add_task("starting", total=None)
        self._started = 0

    def __enter__(self) -> Display:
        """Start drawing."""
        self._bars.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop drawing."""
        self._bars.stop()

    def plan(self, steps: int) -> None:
        """Show how many steps there are."""
        self._bars.update(self._task, total=steps)

    def step(self, label: str) -> None:
        """Show the step that starts; the ones before it are done."""
        self._bars.update(self._task, description=label, completed=self._started)
        self._started += 1

    def note(self, line: str) -> None:
        """Print a line above the moving one."""
        self._bars.console.print(line, markup=False, highlight=False, soft_wrap=True)


def bench_command(
    name: str | None, size: str, json_file: Path | None, list_: bool, only: str | None = None
) -> int:
    """Measure a claim and print it; return 0 if every bar holds."""
    console = Console()
    if list_ or name is None:
        for bench in benches():
            console.print(
                f"{bench.name:<16} {bench.claim}", markup=False, highlight=False, soft_wrap=True
            )
        return HELD
    if size not in list(Size):
        msg = f"unknown size {size!r}; choose one of: {', '.join(Size)}"
        raise DefinitionError(msg)
    bench = find(name)
    if only is not None:
        if bench.narrowed is None:
            msg = f"bench {name} measures all of its cases: leave out --only"
            raise DefinitionError(msg)
        bench = bench.narrowed(only.split(","))
    console.print(f"{bench.name}: {bench.claim}", markup=False, highlight=False, soft_wrap=True)
    with Display(console) as display:
        report = run(bench, Size(size), display)
    show(report, console)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(report.to_json())
    return HELD if report.holds else MISSED


def show(report: BenchReport, console: Console) -> None:
    """Print figures and bars as tables."""
    cases = {name: value for name, value in report.figures.items() if isinstance(value, Mapping)}
    single = {name: value for name, value in report.figures.items() if name not in cases}
    for fields, members in _alike(cases).items():
        table = Table("", *members)
        for field in fields:
            table.add_row(field, *(_text(cases[member][field]) for member in members))
        console.print(table)
    if single:
        table = Table("figure", "value")
        for name, value in single.items():
            table.add_row(name, _text(value))
        console.print(table)
    if report.bars:
        table = Table("bar", "wanted", "measured", "holds")
        for bar in report.bars:
            table.add_row(bar.name, bar.wanted, _text(bar.measured), "yes" if bar.holds else "NO")
        console.print(table)
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    console.print(
        f"{machine}; commit {report.commit}", markup=False, highlight=False, soft_wrap=True
    )


def _alike(cases: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, ...], list[str]]:
    """Group cases with the same fields: they share a table."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name, fields in cases.items():
        found.setdefault(tuple(fields), []).append(name)
    return found


def _text(value: Any) -> str:
    """Format a figure."""
    if value is None:
        return "-"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    if isinstance(value, list):
        long = len(value) > _SHOWN
        return f"{len(value)} values" if long else ", ".join(map(_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    return str(value)
