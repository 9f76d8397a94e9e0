"""`python -m examples NAME`: larger applications, each with options of its own.

Every application has a folder: a generator of its stream, the query as a user would write it, a
model that computes the same results offline, and a demo that runs and compares them. The programs
next to the folders are single files and run on their own.

    python -m examples --help
    make demo ARGS="lending --events 100000"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from icestream.cli import reported
from icestream.commands.demo import Keep, Memory, Range, Rate, Seed, Ui, run_demo


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
    from examples.market.demo import demo as run

    run_demo(
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
        str, typer.Option(help="Which symbol is priced first: inplace, fifo or linecutting.")
    ] = "inplace",
    memory: Memory = "64 MB",
    seed: Seed = 1,
    keep: Keep = None,
    ui: Ui = False,
) -> None:
    """Run a market dashboard: an expensive price of every symbol, as fresh as the machine can."""
    from examples.market.freshness import demo as run

    run_demo(
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
    from examples.recommender.demo import demo as run

    run_demo(
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
        str, typer.Option(help="Which partitions are spilled first.")
    ] = "global_output_ahead",
    seed: Seed = 1,
    keep: Keep = None,
    ui: Ui = False,
) -> None:
    """Join prices, volumes and reviews of stocks early, and completely in the end."""
    from examples.integration.demo import demo as run

    run_demo(run, events=events, memory=memory, strategy=strategy, seed=seed, keep=keep, ui=ui)


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
    from examples.lending.demo import demo as run

    run_demo(run, events=events, memory=memory, rate=rate, seed=seed, keep=keep, ui=ui)


def advertising(
    events: Annotated[int, typer.Option(help="How many events to generate.")] = 200_000,
    memory: Memory = "128 MB",
    window: Annotated[str, typer.Option(help="How long clicks and searches count.")] = "6 hours",
    refresh: Annotated[str, typer.Option(help="How often the model changes.")] = "1 hour",
    ads: Annotated[int, typer.Option(help="How many ads there are.")] = 20,
    keywords: Annotated[int, typer.Option(help="How many keywords there are.")] = 100,
    asking: Annotated[int, typer.Option(help="One in this many users is scored.")] = 50,
    seed: Seed = 1,
    keep: Keep = None,
    ui: Ui = False,
) -> None:
    """Run behavioural targeting: drop bots, learn which keywords predict clicks, score users."""
    from examples.advertising.demo import demo as run

    run_demo(
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


def commands() -> typer.Typer:
    """Return the command line: one command for each application."""
    app = typer.Typer(
        name="examples",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Applications over generated streams, run and checked on this machine.",
    )
    for command in (vwap, market, recommender, integration, lending, advertising):
        app.command(command.__name__)(reported(command))
    return app


if __name__ == "__main__":
    commands()(prog_name="python -m examples")
