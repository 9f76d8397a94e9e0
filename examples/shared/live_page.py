"""Parts of a live page that the example applications share."""

from __future__ import annotations

from rich.progress_bar import ProgressBar

from icestream.core.units import format_bytes
from icestream.demo.progress import Progress, bar


def memory_bar(progress: Progress) -> tuple[ProgressBar, str]:
    """Draw how much of its budget a query holds, and write what is on the log."""
    text = (
        f"{format_bytes(progress.memory)} of {format_bytes(progress.budget)} budget, "
        f"{format_bytes(progress.log)} on the log"
    )
    return bar(progress.memory, progress.budget or 1), text


def waiting_line(elapsed: float, written: int, events: int) -> str:
    """Write the line before there is a report."""
    return (
        f"{elapsed:5.0f} s  {written:,} of {events:,} events written, none processed yet: "
        "the first batch also starts Spark's workers"
    )
