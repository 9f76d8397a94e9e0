"""Adds up the progress reports of a running query, and shows them as bars.

Invariants:
1. Each version is counted once, however often its report is seen
   (`test_oracle_a_batch_is_counted_once`).
2. Results of a version without a batch, such as a clean-up, are counted
   (`test_results_of_clean_up_count_without_a_batch`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.progress_bar import ProgressBar
from rich.table import Table

from icestream.core.times import Micros

_PHASES = ("ingest", "component", "commit", "sink")


@dataclass(slots=True, kw_only=True)
class Progress:
    """The progress of a query."""

    processed: int = 0
    batches: int = 0
    late: int = 0
    result_rows: int = 0
    #: current and peak bytes of state in memory, and their budget
    memory: int = 0
    peak: int = 0
    budget: int = 0
    #: bytes of the log
    log: int = 0
    groups: int = 0
    watermark: str | None = None
    #: milliseconds of the phases of the last batch, and its events per second
    phases: dict[str, int] = field(default_factory=dict)
    batch_speed: float = 0.0
    #: seconds from the start of the query to its last batch
    running: float = 0.0
    last_version: int = 0

    @property
    def speed(self) -> float:
        """Return the events per second since the query was started."""
        return self.processed / self.running if self.running > 0 else 0.0

    def absorb(self, reports: Sequence[Mapping[str, Any]]) -> bool:
        """Add the progress reports of a query; return whether there was a new version."""
        new = [report for report in reports if report["version"] > self.last_version]
        for report in new:
            own = report["icestream"]
            self.last_version = report["version"]
            if report["batchId"] is not None:
                self.batches += 1
                self.processed += report["numInputRows"]
                self.batch_speed = report["processedRowsPerSecond"]
            self.phases = {
                name: round(report["durationMs"][name])
                for name in _PHASES
                if name in report["durationMs"]
            }
            self.watermark = own["watermark"] or self.watermark
            self.late = own["lateEvents"]
            self.result_rows += own["resultRows"]
            self.memory, self.budget = own["stateMemoryBytes"], own["budgetBytes"]
            self.peak = max(self.peak, self.memory)
            self.log, self.groups = own["logBytes"], own["groups"]
        return bool(new)


def show_time(moment: Micros) -> str:
    """Format the event time of a demo's progress: `2026-01-01 14:10:00`."""
    return f"{datetime.fromtimestamp(moment // 1_000_000, UTC):%Y-%m-%d %H:%M:%S}"


def show_speed(speed: float) -> str:
    """Format the speed of a demo's progress: `1.62 M events/s`, `950 events/s`."""
    return f"{speed / 1e6:.2f} M events/s" if speed >= 1e5 else f"{speed:,.0f} events/s"


def show_watermark(progress: Progress) -> str:
    """Format the watermark of a demo's progress."""
    return progress.watermark.replace("T", " ")[:19] if progress.watermark else "none yet"


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
