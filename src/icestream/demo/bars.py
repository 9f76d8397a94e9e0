"""The progress bars at the top of a demo's live page, shared by all demos."""

from __future__ import annotations

from rich.progress_bar import ProgressBar
from rich.table import Table

from icestream.demo.progress import Progress

_WIDTH = 36


def bars() -> Table:
    """Return a table of bars: rows of a name, a bar or a text, and a text."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(width=_WIDTH)
    grid.add_column()
    return grid


def bar(done: float, total: float) -> ProgressBar:
    """Return a bar of the completed part."""
    return ProgressBar(total=total, completed=done, width=_WIDTH)


def events_bar(progress: Progress, events: int, written: int) -> tuple[ProgressBar, str]:
    """Return a bar of processed events, out of all events."""
    text = f"{progress.processed:,} of {events:,} ({written:,} generated)"
    return bar(progress.processed, events), text


def show_phases(progress: Progress) -> str:
    """Return a text under the bars: how long the phases of the last batch took."""
    return "  ".join(f"{name} {millis:,} ms" for name, millis in progress.phases.items())
