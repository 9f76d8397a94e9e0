"""`python -m examples vwap`: a market of a hundred stocks, generated, queried and shown live.

Idea: a thread writes trades into files while a local Spark runs two queries over them, both in CQL:
the volume-weighted average price of a stock over the last hour with every trade of it, and the same
every second with more figures of a stock, which is the table shown.

Invariants:
1. The figures shown at the end follow from the trades
   (`test_oracle_the_demo_ends_with_the_figures_of_the_last_window`).

Limits: unless a rate is given, the trades are spread over 13/12 of the window, so that full windows
slide for a while at the end. Windows that move with events cannot share a query with others, so the
trades are read twice.

References: Shared SlideM, section 5.3, query 3.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console, RenderableType

import icestream as ice
from examples.market.display import MarketStatus, live_page, plain_line, stock_table, summary_table
from examples.market.generator import SPARK_SCHEMA, TradeStream
from examples.market.latest_rows import LatestRows
from icestream.core.errors import DefinitionError
from icestream.core.units import format_interval, parse_bytes, parse_interval
from icestream.demo.progress import Progress
from icestream.demo.replay import Replay
from icestream.demo.results import NewestWindow
from icestream.demo.running import DemoQuery, demo_folder, demo_session, follow, wide_console

RESULTS = ("both", "trade", "slide")
_SLACK = "1 second"
#: files in all and trades per batch to aim at
_FILES = 200
_EVENTS_PER_BATCH = 250_000
#: stocks in the table at the end
_SHOWN = 20


def per_trade(window: str) -> str:
    """Return the statement with a result for every trade."""
    return (
        "SELECT symbol, SUM(volume * price) / SUM(volume) AS vwap "
        f"FROM trades [RANGE {_cql(window)}] GROUP BY symbol"
    )


def per_slide(window: str, slide: str) -> str:
    """Return the statement with results at every slide."""
    return (
        "SELECT symbol, SUM(volume * price) / SUM(volume) AS vwap, LAST(price) AS last_price, "
        "SUM(volume) AS volume, COUNT(*) AS trades "
        f"FROM trades [RANGE {_cql(window)} SLIDE {_cql(slide)}] GROUP BY symbol"
    )


def demo(
    *,
    events: int = 2_000_000,
    memory: str = "64 MB",
    window: str = "1 hour",
    slide: str = "1 second",
    results: str = "both",
    rate: int | None = None,
    seed: int = 1,
    keep: Path | None = None,
    ui: bool = False,
    console: Console | None = None,
) -> int:
    """Run the demo and show it.

    Args:
        events: how many trades to generate and process.
        memory: the budget of each query's state.
        window: the range of the window.
        slide: how often the table gets a result, in event time.
        results: `trade` for a row per trade, `slide` for rows at every slide, or `both`.
        rate: trades per second of event time; None spreads them over 13/12 of the window.
        seed: seed of the generated market.
        keep: a new or empty folder for trades, results and checkpoints; None for a temporary one.
        ui: whether to show the queries on a local page, too.
        console: where to show it.

    Returns:
        The exit code of the command: 0.
    """
    began = time.monotonic()
    console = console or wide_console()
    _refuse_nonsense(events, results)
    parse_bytes(memory)
    if rate is None:
        rate = max(1, events * 1_000_000 // (parse_interval(window) * 13 // 12))
    stream = TradeStream(rate=rate, seed=seed, disorder=parse_interval(_SLACK))
    until = stream.begin + events * 1_000_000 // rate
    statements = {"trade": per_trade(window), "slide": per_slide(window, slide)}
    chosen = {name: text for name, text in statements.items() if results in (name, "both")}
    named = {"trade": "every trade", "slide": f"every {format_interval(parse_interval(slide))}"}
    progress = {named[name]: Progress() for name in chosen}
    status = MarketStatus(events, stream.begin, until, window, progress)
    seconds = max(1, (until - stream.begin) // (_FILES * 1_000_000))
    with ExitStack() as ending:
        home = ending.enter_context(demo_folder(keep, console if ui else None))
        source = home / "events"
        source.mkdir()
        replay = Replay(stream, source, events, seconds=seconds)
        replay.start()
        ending.callback(replay.stop)
        console.print(
            f"Starting Spark; generating {events:,} trades, {rate:,} a second. In CQL:",
            highlight=False,
        )
        for text in chosen.values():
            console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)
        spark = demo_session(ending)
        view = _View(replay, status, home, began)
        files = max(1, round(_EVENTS_PER_BATCH / (seconds * rate)))
        for name, text in chosen.items():
            query = _start(spark, home, name, text, files=files, memory=memory)
            ending.callback(query.stop)
            view.queries[named[name]] = query
        follow(list(view.queries.values()), replay, view, console)
    status.elapsed = time.monotonic() - began
    _show_end(console, status, keep)
    return 0


def _cql(interval: str) -> str:
    return format_interval(parse_interval(interval)).upper()


def _refuse_nonsense(events: int, results: str) -> None:
    """Raise for invalid arguments."""
    if events < 1:
        msg = f"the demo needs at least 1 trade; got {events}"
        raise DefinitionError(msg)
    if results not in RESULTS:
        msg = f"there are no results {results!r}; choose one of {', '.join(RESULTS)}"
        raise DefinitionError(msg)


def _start(
    spark: SparkSession, home: Path, name: str, text: str, *, files: int, memory: str
) -> DemoQuery:
    """Start a statement over the files in `events`."""
    frame = (
        spark.readStream.schema(SPARK_SCHEMA)
        .option("maxFilesPerTrigger", files)
        .parquet(str(home / "events"))
    )
    trades = ice.stream(frame, time="timestamp", slack=_SLACK)
    result: ice.Result = ice.sql(text, trades=trades)
    return (
        result.writeStream.format("parquet")
        .option("path", str(home / f"results-per-{name}"))
        .option("checkpointLocation", str(home / f"checkpoint-per-{name}"))
        .memory(memory)
        .start()
    )


class _View:
    """The view of the running queries."""

    def __init__(self, replay: Replay, status: MarketStatus, home: Path, began: float) -> None:
        """Start empty."""
        self.queries: dict[str, DemoQuery] = {}
        self._replay = replay
        self._status = status
        self._latest = LatestRows(home / "results-per-trade", "symbol")
        self._newest = NewestWindow(home / "results-per-slide", "symbol")
        self._began = began
        self._started = time.monotonic()

    def look(self) -> None:
        """Update from the progress of the queries, and from the newest results after a batch."""
        now = time.monotonic()
        status = self._status
        status.elapsed = now - self._began
        status.written = self._replay.written
        for every, query in self.queries.items():
            progress = status.queries[every]
            if progress.absorb(query.recentProgress):
                progress.running = now - self._started
                self._latest.refresh()
                self._newest.refresh()
        status.window_end, status.rows = self._newest.end, self._newest.rows
        status.latest = self._latest.rows

    def page(self) -> RenderableType:
        """Draw the page."""
        return live_page(self._status)

    def line(self) -> str:
        """Return the line."""
        return plain_line(self._status)


def _show_end(console: Console, status: MarketStatus, keep: Path | None) -> None:
    """Show the last figures of the stocks and the cost of the run."""
    console.print(plain_line(status), soft_wrap=True, highlight=False)
    console.print()
    if status.rows or status.latest:
        console.print(stock_table(status, most=_SHOWN))
        console.print()
    console.print(summary_table(status, kept=str(keep) if keep else None))
