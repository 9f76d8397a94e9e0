"""`icestream demo`: the applications that ship with the package, each with options of its own.

Idea: a command imports the demo when it runs. With `--ui` the queries are also on a local page; on
a terminal the page stays after the demo has ended, until Ctrl-C.

Invariants:
1. A command has the defaults of the demo it runs
   (`test_demo_has_the_defaults_of_the_function_it_runs`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

Memory = Annotated[str, typer.Option(help="The budget of the state of a query.")]
Range = Annotated[str, typer.Option(help="The range of the window.")]
Rate = Annotated[
    int | None, typer.Option(help="Events per second of event time; fills the window if unset.")
]
Seed = Annotated[int, typer.Option(help="Another seed is another stream.")]
Keep = Annotated[
    Path | None, typer.Option(help="Keep events, results and checkpoints in this new folder.")
]
Ui = Annotated[bool, typer.Option("--ui", help="Show the queries on a local page, too.")]
CallEvents = Annotated[int, typer.Option(help="How many events to generate.")]
CallSlide = Annotated[str, typer.Option(help="How often there is a result.")]
CallBy = Annotated[str, typer.Option(help="The grouping key.")]
CallFastForward = Annotated[
    float | None,
    typer.Option(help="How many times faster than event time; at full speed if unset."),
]


def commands(reported: Callable[[Callable[..., None]], Callable[..., None]]) -> typer.Typer:
    """Return the commands, each wrapped so that errors are told in one line."""
    app = typer.Typer(name="demo", rich_markup_mode=None)
    app.callback(invoke_without_command=True)(reported(demo))
    for command in (call_centre, vwap, market, recommender, integration, lending, advertising):
        app.command(command.__name__.replace("_", "-"))(reported(command))
    return app


def stay() -> None:
    """Let the page of this process stay until Ctrl-C, on a terminal."""
    if sys.stdout.isatty():
        typer.echo("The page stays until you press Ctrl-C.")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def use_this_python() -> None:
    """Let Spark start its Python workers with this interpreter, unless told otherwise."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def demo(
    context: typer.Context,
    events: CallEvents = 12_000_000,
    memory: Memory = "64 MB",
    window: Range = "24 hours",
    slide: CallSlide = "10 seconds",
    by: CallBy = "serviceId",
    rate: Rate = None,
    fast_forward: CallFastForward = None,
    seed: Seed = 1,
    keep: Keep = None,
    ui: Ui = False,
) -> None:
    """Run a stream and live figures over it on this machine, and tell what that took.

    Without a command the call centres run, with the options below; `icestream demo vwap` is a stock
    market that is answered with every trade, `icestream demo market` prices the newest quotes of a
    market, `icestream demo integration` joins three feeds in little memory, `icestream demo
    recommender` recommends what to watch, `icestream demo advertising` learns who clicks which ad,
    `icestream demo lending` follows loans by area while its tasks come and go.
    Each has options of its own: see its --help.
    """
    if context.invoked_subcommand is None:
        _run_call_centre(events, memory, window, slide, by, rate, fast_forward, seed, keep, ui)
        return
    early = [name for name in context.params if _was_given(context, name)]
    if early:
        option = f"--{early[0].replace('_', '-')}"
        msg = f"options go behind the name of the demo: {context.invoked_subcommand} {option} ..."
        raise typer.BadParameter(msg)


def call_centre(
    events: CallEvents = 12_000_000,
    memory: Memory = "64 MB",
    window: Range = "24 hours",
    slide: CallSlide = "10 seconds",
    by: CallBy = "serviceId",
    rate: Rate = None,
    fast_forward: CallFastForward = None,
    seed: Seed = 1,
    keep: Keep = None,
    ui: Ui = False,
) -> None:
    """Run a day of 20 call centres through a window of 24 hours that slides every 10 seconds."""
    _run_call_centre(events, memory, window, slide, by, rate, fast_forward, seed, keep, ui)


def vwap(
    events: Annotated[int, typer.Option(help="How many trades to generate.")] = 2_000_000,
    memory: Memory = "64 MB",
    window: Range = "1 hour",
    slide: Annotated[str, typer.Option(help="How often the table gets a result.")] = "1 second",
    results: Annotated[
        str,
        typer.Option(help="trade: a row per trade; slide: rows at every slide; or both."),
    ] = "both",
    rate: Rate = None,
    seed: Seed = 1,
    keep: Keep = None,
    ui: Ui = False,
) -> None:
    """Run a stock market: the average price of the last hour, weighted by volume, per trade."""
    from icestream.apps.market.demo import demo as run

    _run_demo(
        run,
        events=events,
        memory=memory,
        window=window,
        slide=slide,
        results=results,
        rate=rate,
        seed=seed,
        keep=keep,
        ui=ui,
    )


def market(
    seconds: Annotated[int, typer.Option(help="How long it runs.")] = 60,
    symbols: Annotated[int, typer.Option(help="How many symbols there are.")] = 3000,
    rate: Annotated[int, typer.Option(help="Quotes per second.")] = 20_000,
    schedule: Annotated[
        str, typer.Option(help="Who is priced first: index, linecutting, inplace or fifo.")
    ] = "index",
    memory: Memory = "64 MB",
    seed: Seed = 1,
    keep: Keep = None,
    ui: Ui = False,
) -> None:
    """Run a market dashboard: an expensive price of every symbol, as fresh as the machine can."""
    from icestream.apps.market.freshness import demo as run

    _run_demo(
        run,
        seconds=seconds,
        symbols=symbols,
        rate=rate,
        schedule=schedule,
        memory=memory,
        seed=seed,
        keep=keep,
        ui=ui,
    )


def recommender(
    ratings: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="A file of MovieLens; generated if unset."),
    ] = None,
    count: Annotated[int, typer.Option(help="How many ratings to use.")] = 12_000,
    memory: Memory = "256 MB",
    window: Annotated[str, typer.Option(help="How long a rating counts.")] = "14 days",
    items: Annotated[int, typer.Option(help="How many items to recommend.")] = 10,
    requests: Annotated[int, typer.Option(help="Requests for each rating.")] = 1,
    standing: Annotated[
        float, typer.Option(help="Share of the requests that open or close a standing one.")
    ] = 0.001,
    seed: Seed = 1,
    keep: Keep = None,
    ui: Ui = False,
) -> None:
    """Run a recommender: similar items by the ratings of the last days, for everyone who asks."""
    from icestream.apps.recommender.demo import demo as run

    _run_demo(
        run,
        ratings=ratings,
        count=count,
        memory=memory,
        window=window,
        items=items,
        requests=requests,
        standing=standing,
        seed=seed,
        keep=keep,
        ui=ui,
    )


def integration(
    events: Annotated[int, typer.Option(help="How many rows of all feeds to generate.")] = 200_000,
    memory: Memory = "16 MB",
    strategy: Annotated[
        str, typer.Option(help="Which partitions leave memory first.")
    ] = "global_output_ahead",
    seed: Seed = 1,
    keep: Keep = None,
    ui: Ui = False,
) -> None:
    """Join prices, volumes and reviews of stocks early, and completely once all has arrived."""
    from icestream.apps.integration.demo import demo as run

    _run_demo(run, events=events, memory=memory, strategy=strategy, seed=seed, keep=keep, ui=ui)


def lending(
    events: Annotated[int, typer.Option(help="How many loans to generate.")] = 600_000,
    memory: Memory = "128 MB",
    rate: Annotated[
        int | None, typer.Option(help="Loans per second of event time; 27 hours if unset.")
    ] = None,
    seed: Seed = 1,
    keep: Keep = None,
    ui: Ui = False,
) -> None:
    """Run a lender: a job that is fused, split, rescaled and rebalanced while it runs."""
    from icestream.apps.lending.demo import demo as run

    _run_demo(run, events=events, memory=memory, rate=rate, seed=seed, keep=keep, ui=ui)


def advertising(
    events: Annotated[int, typer.Option(help="How many events to generate.")] = 200_000,
    memory: Memory = "128 MB",
    window: Annotated[str, typer.Option(help="How long clicks and searches count.")] = "6 hours",
    refresh: Annotated[str, typer.Option(help="How often the model changes.")] = "1 hour",
    ads: Annotated[int, typer.Option(help="How many ads there are.")] = 20,
    keywords: Annotated[int, typer.Option(help="How many keywords there are.")] = 100,
    asking: Annotated[int, typer.Option(help="One of so many users is scored.")] = 50,
    seed: Seed = 1,
    keep: Keep = None,
    ui: Ui = False,
) -> None:
    """Run behavioural targeting: drop bots, learn what speaks for an ad, score who asks."""
    from icestream.apps.advertising.demo import demo as run

    _run_demo(
        run,
        events=events,
        memory=memory,
        window=window,
        refresh=refresh,
        ads=ads,
        keywords=keywords,
        asking=asking,
        seed=seed,
        keep=keep,
        ui=ui,
    )


def _run_call_centre(
    events: int,
    memory: str,
    window: str,
    slide: str,
    by: str,
    rate: int | None,
    fast_forward: float | None,
    seed: int,
    keep: Path | None,
    ui: bool,
) -> None:
    from icestream.apps.call_center.demo import demo as run

    _run_demo(
        run,
        events=events,
        memory=memory,
        window=window,
        slide=slide,
        by=by,
        rate=rate,
        fast_forward=fast_forward,
        seed=seed,
        keep=keep,
        ui=ui,
    )


def _run_demo(run: Callable[..., int], *, ui: bool, **options: Any) -> None:
    """Run a demo with this Python in its workers, and end with its exit code."""
    use_this_python()
    code = run(ui=ui, **options)
    if ui:
        stay()
    raise typer.Exit(code)


def _was_given(context: typer.Context, name: str) -> bool:
    """Tell whether an option was written on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
