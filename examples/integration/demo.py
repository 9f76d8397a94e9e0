"""`python -m examples integration`: prices, volumes and reviews, joined early, then completely.

Idea: a thread writes rows of three feeds into files while a local Spark joins them: price and
volume of each trade, then all reviews of its stock. Memory is short, so partitions of the joins are
spilled; the rest still produces results. When everything has arrived the joins are cleaned up, and
the number of rows is compared with a join of everything.

Invariant: early and late rows together are the rows of the exact join
(`test_oracle_the_demo_ends_with_the_exact_join`).

References: Liu, Zhu, Rundensteiner (2006), introduction.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table

import icestream as ice
from examples.integration.generator import PRICE, REVIEW, SPARK_SCHEMA, VOLUME, Desk
from examples.shared.live_page import memory_bar
from icestream.core.errors import DefinitionError
from icestream.core.units import format_bytes, parse_bytes
from icestream.demo.progress import Progress, bars, events_bar, show_phases, show_speed
from icestream.demo.replay import Replay
from icestream.demo.running import demo_folder, demo_session, follow, wide_console

_RATE = 1000
#: event time of a file, in seconds, and files per batch
_SECONDS = 10
_FILES_PER_BATCH = 1


@dataclass
class IntegrationStatus:
    """The progress of the demo."""

    events: int
    progress: Progress = field(default_factory=Progress)
    written: int = 0
    elapsed: float = 0.0
    #: spills chosen by the driver, and spills that a shard was forced to do within a batch
    spills: int = 0
    forced: int = 0
    spilled: int = 0
    #: rows that came at once, and rows from clean-up
    early: int = 0
    late: int = 0
    #: the last reports of the joins
    joins: list[dict[str, Any]] = field(default_factory=list)


def integrated(spark: SparkSession, folder: Path, **spilling: Any) -> ice.Events:
    """Return the trades of the files in a folder, with all reviews of their stocks."""
    frame = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", _FILES_PER_BATCH)
    events = ice.stream(frame.parquet(str(folder)), time="timestamp").events().forever()

    def feed(kind: str, *columns: str) -> ice.Events:
        return events.where(f"kind = '{kind}'").select(*columns)

    trades = ice.join(
        feed(PRICE, "number AS trade", "symbol", "value AS price"),
        feed(VOLUME, "number AS trade", "value AS volume"),
        on="trade",
        onPressure="defer",
        **spilling,
    )
    reviews = feed(REVIEW, "number AS review", "symbol", "value AS rating")
    return trades.join(reviews, on="symbol", onPressure="defer", **spilling)


def demo(
    *,
    events: int = 200_000,
    memory: str = "16 MB",
    strategy: str = "global_output_ahead",
    seed: int = 1,
    keep: Path | None = None,
    ui: bool = False,
    console: Console | None = None,
) -> int:
    """Run the demo and show it.

    Args:
        events: how many rows of all feeds to generate and process.
        memory: the budget of the query's state.
        strategy: which partitions are spilled first.
        seed: seed of the generated market.
        keep: a new or empty folder for events, results and checkpoint; None for a temporary one.
        ui: whether to show the queries on a local page, too.
        console: where to show it.

    Returns:
        The exit code of the command: 0, or 1 if rows are missing or duplicate.
    """
    began = time.monotonic()
    console = console or wide_console()
    if events < 1:
        msg = f"the demo needs at least 1 row; got {events}"
        raise DefinitionError(msg)
    parse_bytes(memory)
    status = IntegrationStatus(events)
    with ExitStack() as ending:
        home = ending.enter_context(demo_folder(keep, console if ui else None))
        (home / "events").mkdir()
        replay = Replay(Desk(_RATE, seed), home / "events", events, seconds=_SECONDS)
        replay.start()
        ending.callback(replay.stop)
        console.print(f"Starting Spark; generating {events:,} rows of 3 feeds.", highlight=False)
        spark = demo_session(ending)
        query = (
            integrated(spark, home / "events", strategy=strategy)
            .writeStream.format("parquet")
            .option("path", str(home / "results"))
            .option("checkpointLocation", str(home / "checkpoint"))
            .memory(memory)
            .start()
        )
        ending.callback(query.stop)
        view = _View(query, replay, status, began)
        follow([query], replay, view, console)
        status.early = status.progress.result_rows
        console.print(_line(status), soft_wrap=True, highlight=False)
        console.print("Everything has arrived: cleaning up the joins.", highlight=False)
        started = time.monotonic()
        query.cleanUp()
        cleaning = time.monotonic() - started
        query.stop()
        expected = exact_rows(pq.read_table(home / "events"))
        found, distinct = _written(home / "results")
    status.late, status.elapsed = found - status.early, time.monotonic() - began
    console.print(_summary(status, cleaning, expected, found, distinct))
    return 0 if expected == found == distinct else 1


def exact_rows(events: pa.Table) -> int:
    """Count the rows of the join of all events: for each stock, trades times reviews."""

    def of(kind: str, *columns: str) -> pa.Table:
        return events.filter(pc.equal(events.column("kind"), kind)).select(list(columns))

    trades = of(PRICE, "number", "symbol").join(of(VOLUME, "number"), "number", join_type="inner")
    counts = []
    for each in (trades, of(REVIEW, "symbol")):
        counted = each.group_by("symbol").aggregate([([], "count_all")])
        symbols, numbers = (counted.column(name).to_pylist() for name in ("symbol", "count_all"))
        counts.append(dict(zip(symbols, numbers, strict=True)))
    return sum(count * counts[1].get(symbol, 0) for symbol, count in counts[0].items())


def _written(folder: Path) -> tuple[int, int]:
    """Count the rows that were written, and the distinct ones among them."""
    rows = pq.read_table(folder, columns=["trade", "review"])
    return rows.num_rows, rows.group_by(["trade", "review"]).aggregate([]).num_rows


class _View:
    """The view of the running query."""

    def __init__(
        self, query: ice.Query, replay: Replay, status: IntegrationStatus, began: float
    ) -> None:
        """Start empty."""
        self._query = query
        self._replay = replay
        self._status = status
        self._began = began
        self._started = time.monotonic()

    def look(self) -> None:
        """Update from the progress of the query."""
        now, status = time.monotonic(), self._status
        status.elapsed, status.written = now - self._began, self._replay.written
        reports = self._query.recentProgress
        new = [each for each in reports if each["version"] > status.progress.last_version]
        if not status.progress.absorb(reports):
            return
        status.progress.running = now - self._started
        status.spilled += sum(each["icestream"]["bytesSpilled"] for each in new)
        status.forced += sum(
            join["forcedSpills"] for each in new for join in each["icestream"]["joins"]
        )
        told = reports[-1]["icestream"]
        status.spills, status.joins = told["spills"], told["joins"]

    def page(self) -> RenderableType:
        """Draw the page."""
        status, grid = self._status, bars()
        grid.add_row("rows", *events_bar(status.progress, status.events, status.written))
        grid.add_row("memory", *memory_bar(status.progress))
        grid.add_row("speed", show_speed(status.progress.speed), show_phases(status.progress))
        grid.add_row("early results", f"{status.progress.result_rows:,}", _spilled(status))
        title = f"Icestream: prices, volumes and reviews, {status.elapsed:.0f} s"
        return Group(Panel(grid, title=title, title_align="left"), _joins(status))

    def line(self) -> str:
        """Return the line."""
        return _line(self._status)


def _spilled(status: IntegrationStatus) -> str:
    spills = f"{status.spills:,} spills" + f" and {status.forced:,} of need" * bool(status.forced)
    return f"{format_bytes(status.spilled)} left memory in {spills}"


def _line(status: IntegrationStatus) -> str:
    progress = status.progress
    return (
        f"{status.elapsed:5.0f} s  {progress.processed:,} of {status.events:,} rows, "
        f"{show_speed(progress.speed)}, {progress.result_rows:,} early results, "
        f"memory {format_bytes(progress.memory)} of {format_bytes(progress.budget)}, "
        f"{_spilled(status)}"
    )


def _joins(status: IntegrationStatus) -> Table:
    """Draw the state of each join."""
    table = Table(title="Joins", title_justify="left", title_style="bold")
    for heading in ("join", "in memory", "generations on disk", "partitions that owe"):
        table.add_column(heading, justify="right")
    for each in status.joins:
        table.add_row(
            str(each["join"]),
            format_bytes(each["residentBytes"]),
            f"{each['generations']:,}",
            f"{each['owingPartitions']:,}",
        )
    return table


def _summary(
    status: IntegrationStatus, cleaning: float, expected: int, found: int, distinct: int
) -> RenderableType:
    """Draw the cost of the run, and whether it is correct."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    facts.add_row("early results", f"{status.early:,}, {show_speed(status.progress.speed)}")
    facts.add_row("late results", f"{status.late:,}, by a clean-up of {cleaning:.1f} s")
    facts.add_row("spills", _spilled(status))
    facts.add_row("memory at most", format_bytes(status.progress.peak))
    verdict = "the same" if expected == found == distinct else f"{distinct:,} different ones"
    facts.add_row("exact join", f"{expected:,} rows: {verdict}")
    facts.add_row("time", f"{status.elapsed:.1f} s")
    return Group(_joins(status), facts)
