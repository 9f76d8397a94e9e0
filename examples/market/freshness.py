"""`python -m examples market`: an expensive analytic of thousands of symbols, as fresh as it can be.

Idea: quotes of many symbols, some quoted all the time and some rarely, come faster than they can be
priced: for each symbol's newest quote an option price is computed by Monte Carlo simulation. An
update stream prices what matters most and reports the staleness of its results every second.

Invariants:
1. The demo shows the query's reports (`test_oracle_the_demo_shows_what_the_query_reports`).

References: the market dashboard of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from rich.console import Console
from rich.live import Live
from rich.table import Table

import icestream as ice
from examples.market.quotes import SPARK_SCHEMA, LiveQuotes
from icestream.core.errors import DefinitionError
from icestream.core.units import parse_bytes
from icestream.demo.running import demo_folder, demo_session, wide_console
from icestream.plan.nodes.updates import SCHEDULES

OPTIONS = "symbol string, ts timestamp, price double, option double"
#: batches and symbols shown
_BATCHES = 10
_SYMBOLS = 8
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class OptionPrices:
    """Prices an option on every symbol: the mean over many random price paths."""

    paths: int = 20_000

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the price of an option that is at the money."""
        dice = np.random.default_rng(1)
        prices = np.asarray(rows.column("price").to_numpy())
        worth = np.empty(len(prices))
        for place, price in enumerate(prices.tolist()):
            ends = price * np.exp(0.2 * dice.normal(size=self.paths) - 0.02)
            worth[place] = np.maximum(ends - price, 0).mean()
        columns = [rows.column(name) for name in ("symbol", "ts", "price")]
        return pa.RecordBatch.from_arrays(
            [*columns, pa.array(np.round(worth, 4))], ["symbol", "ts", "price", "option"]
        )


@dataclass
class Dashboard:
    """The newest results, and their staleness."""

    batches: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_BATCHES))
    #: the rows of the query's table that were updated last
    newest: list[Row] = field(default_factory=list)
    _seen: int = -1

    def look(self, query: ice.Query) -> None:
        """Update from the query's reports and, after a batch, from its table."""
        for report in query.recentProgress:
            if report["version"] > self._seen:
                self._seen = report["version"]
                seconds = report["durationMs"]["triggerExecution"] / 1000
                told = report["icestream"]["updates"]
                self.batches.append({**told, "quotes": report["numInputRows"], "seconds": seconds})
                self.newest = query.table().orderBy("age").limit(_SYMBOLS).collect()

    def table(self) -> Table:
        """Draw the last batches and the newest results."""
        page = Table.grid(padding=(0, 4))
        page.add_row(self._of_batches(), self._of_symbols())
        return page

    def line(self) -> str:
        """Return the last batch as a line."""
        if not self.batches:
            return "no batch yet"
        last = self.batches[-1]
        stale = last["staleness"]
        return (
            f"{last['quotes']:,} quotes, {last['served']:,} symbols priced, "
            f"{last['waiting']:,} wait, batch {last['seconds']:.2f} s, staleness "
            f"{stale['averageMs'] / 1000:.2f} s on average, {stale['p99Ms'] / 1000:.2f} s p99"
        )

    def _of_batches(self) -> Table:
        names = ("quotes", "priced", "wait", "batch", "stale", "p99", "max")
        table = Table(*names, title="batches, times in seconds")
        for each in self.batches:
            stale = [each["staleness"][name] / 1000 for name in ("averageMs", "p99Ms", "maxMs")]
            counts = [f"{each[name]:,}" for name in ("quotes", "served", "waiting")]
            table.add_row(*counts, f"{each['seconds']:.2f}", *(f"{s:.2f}" for s in stale))
        return table

    def _of_symbols(self) -> Table:
        table = Table("symbol", "price", "option", "age", title="newest answers")
        for row in self.newest:
            shown = f"{row['price']:.2f}", f"{row['option']:.4f}", f"{row['age']:.1f}"
            table.add_row(row["symbol"], *shown)
        return table


def demo(
    *,
    seconds: int = 60,
    symbols: int = 3000,
    rate: int = 20_000,
    schedule: str = "inplace",
    memory: str = "64 MB",
    seed: int = 1,
    keep: Path | None = None,
    ui: bool = False,
    console: Console | None = None,
) -> int:
    """Run the demo and show it.

    Args:
        seconds: how long it runs.
        symbols: how many there are.
        rate: quotes per second, of all symbols together.
        schedule: which symbol is priced first: inplace, fifo or linecutting.
        memory: the budget of the query's state.
        seed: seed of the generated market.
        keep: a new or empty folder for quotes and checkpoint; None for a temporary one.
        ui: whether to show the queries on a local page, too.
        console: where to show it.

    Returns:
        The exit code of the command: 0.
    """
    console = console or wide_console()
    if seconds < 1:
        msg = f"the demo needs at least 1 second; got {seconds}"
        raise DefinitionError(msg)
    if schedule not in SCHEDULES:
        msg = f"there is no schedule {schedule!r}; choose one of {', '.join(SCHEDULES)}"
        raise DefinitionError(msg)
    parse_bytes(memory)
    board = Dashboard()
    with ExitStack() as ending:
        home = ending.enter_context(demo_folder(keep, console if ui else None))
        (home / "quotes").mkdir()
        feed = LiveQuotes(home / "quotes", symbols=symbols, rate=rate, seed=seed)
        console.print(
            f"Starting Spark; {rate:,} quotes a second of {symbols:,} symbols", highlight=False
        )
        spark = demo_session(ending)
        frame = spark.readStream.schema(SPARK_SCHEMA).parquet(str(home / "quotes"))
        quotes = ice.stream(frame, time="ts")
        query = (
            quotes.latestBy("symbol", schedule=schedule)
            .apply(OptionPrices(), OPTIONS)
            .writeStream.outputMode("now")
            .option("checkpointLocation", str(home / "checkpoint"))
            .memory(memory)
            .trigger(processingTime="1 second")
            .start()
        )
        ending.callback(query.stop)
        feed.start()
        ending.callback(feed.stop)
        _follow(query, feed, board, seconds, console)
    console.print(board.line(), highlight=False, soft_wrap=True)
    console.print(board.table())
    return 0


def _follow(
    query: ice.Query, feed: LiveQuotes, board: Dashboard, seconds: int, console: Console
) -> None:
    """Show the board until the time is over."""
    until = time.monotonic() + seconds
    with ExitStack() as ending:
        live = None
        if console.is_terminal:
            shown = Live(console=console, refresh_per_second=4, transient=True)
            live = ending.enter_context(shown)
        while time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
            feed.check()
            if not query.isActive:
                query.processAllAvailable()
            before = len(board.batches) and board.batches[-1]
            board.look(query)
            if live is not None:
                live.update(board.table())
            elif board.batches and board.batches[-1] is not before:
                console.print(board.line(), highlight=False, soft_wrap=True)
