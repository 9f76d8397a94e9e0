"""The `icestream` command.

Idea: each command is one function that imports what it runs when it runs, so `--help` is instant
and `doctor` works where Spark does not. Errors that Icestream reports on purpose become one line on
standard error and an exit code; anything else is a bug and keeps its traceback.

Invariants:
1. An `IcestreamError` prints one line, no traceback (`test_an_error_is_one_clean_line`).
2. Each exit code in `--help` is the one returned (`test_each_kind_of_error_has_its_exit_code`).
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from icestream.core.errors import BudgetError, DamageError, IcestreamError
from icestream.inspect.command import commands as state_commands

if TYPE_CHECKING:
    from icestream.doctor import Finding

P = ParamSpec("P")

FAILURE = 1
DAMAGED = 3
OVER_BUDGET = 4


def exit_code(error: IcestreamError) -> int:
    """Tell the exit code of an error: 3 damaged checkpoint, 4 budget, 1 any other."""
    match error:
        case DamageError():
            return DAMAGED
        case BudgetError():
            return OVER_BUDGET
        case _:
            return FAILURE


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """Let a command end with one line and the exit code of the error, instead of a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except IcestreamError as error:
            typer.echo(f"icestream: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(exit_code(error)) from error

    return run


app = typer.Typer(
    name="icestream",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def about() -> None:
    """Stateful streaming queries on Spark whose state is far larger than memory.

    You write a query with PySpark's names and give it a memory budget in bytes; results are
    exact, and what does not fit in the budget is read back from the query's own log on disk.

    Exit codes: 0 fine, 1 failure, 2 wrong usage, 3 damaged checkpoint, 4 budget too small.
    """


@app.command()
def version() -> None:
    """Print the versions of Icestream and Spark."""
    for package in ("icestream", "pyspark"):
        typer.echo(f"{package} {metadata.version(package)}")


demos = typer.Typer(rich_markup_mode=None)
app.add_typer(demos, name="demo")

Memory = Annotated[str, typer.Option(help="The budget of the state of a query.")]
Range = Annotated[str, typer.Option(help="The range of the window.")]
Rate = Annotated[
    int | None, typer.Option(help="Events per second of event time; fills the window if unset.")
]
Seed = Annotated[int, typer.Option(help="Another seed is another stream.")]
Keep = Annotated[
    Path | None, typer.Option(help="Keep events, results and checkpoints in this new folder.")
]
CallEvents = Annotated[int, typer.Option(help="How many events to generate.")]
CallSlide = Annotated[str, typer.Option(help="How often there is a result.")]
CallBy = Annotated[str, typer.Option(help="The grouping key.")]
CallFastForward = Annotated[
    float | None,
    typer.Option(help="How many times faster than event time; at full speed if unset."),
]


@demos.callback(invoke_without_command=True)
@reported
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
        _run_call_centre(events, memory, window, slide, by, rate, fast_forward, seed, keep)
        return
    early = [name for name in context.params if _was_given(context, name)]
    if early:
        option = f"--{early[0].replace('_', '-')}"
        msg = f"options go behind the name of the demo: {context.invoked_subcommand} {option} ..."
        raise typer.BadParameter(msg)


@demos.command()
@reported
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
) -> None:
    """Run a day of 20 call centres through a window of 24 hours that slides every 10 seconds."""
    _run_call_centre(events, memory, window, slide, by, rate, fast_forward, seed, keep)


@demos.command()
@reported
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
    )


@demos.command()
@reported
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
    )


@demos.command()
@reported
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
    )


@demos.command()
@reported
def integration(
    events: Annotated[int, typer.Option(help="How many rows of all feeds to generate.")] = 200_000,
    memory: Memory = "16 MB",
    strategy: Annotated[
        str, typer.Option(help="Which partitions leave memory first.")
    ] = "global_output_with_penalty",
    seed: Seed = 1,
    keep: Keep = None,
) -> None:
    """Join prices, volumes and reviews of stocks early, and completely once all has arrived."""
    from icestream.apps.integration.demo import demo as run

    _run_demo(run, events=events, memory=memory, strategy=strategy, seed=seed, keep=keep)


@demos.command()
@reported
def lending(
    events: Annotated[int, typer.Option(help="How many loans to generate.")] = 400_000,
    memory: Memory = "128 MB",
    rate: Annotated[
        int | None, typer.Option(help="Loans per second of event time; 27 hours if unset.")
    ] = None,
    seed: Seed = 1,
    keep: Keep = None,
) -> None:
    """Run a lender: interest and approval by area and for all, rescaled while it runs."""
    from icestream.apps.lending.demo import demo as run

    _run_demo(run, events=events, memory=memory, rate=rate, seed=seed, keep=keep)


@demos.command()
@reported
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
    )


def _run_demo(run: Callable[..., int], **options: Any) -> None:
    """Run a demo with this Python in its workers, and end with its exit code."""
    use_this_python()
    raise typer.Exit(run(**options))


def _was_given(context: typer.Context, name: str) -> bool:
    """Tell whether an option was written on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@app.command()
@reported
def bench(
    name: Annotated[str | None, typer.Argument(help="The claim to measure; see --list.")] = None,
    size: Annotated[str, typer.Option(help="How much to measure: small or full.")] = "small",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the measurements to this file.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name what can be measured.")] = False,
) -> None:
    """Measure a claim on this machine; ends with 1 if it does not hold here."""
    from icestream.bench.command import bench_command

    use_this_python()
    raise typer.Exit(bench_command(name=name, size=size, json_file=json_file, list_=list_))


@app.command()
@reported
def doctor(
    folder: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Where checkpoints would be; the folder for temporary files if not given.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Check Java, Spark, Python, cores, memory and the disk, and measure synced writes.

    Ends with 0 if Icestream can run here, warnings included, and with 1 if something is missing.
    """
    from icestream.doctor import Health, describe_machine, examine

    findings = examine(folder or Path(tempfile.gettempdir()))
    if as_json:
        report = {**describe_machine(), "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(report, indent=2))
    else:
        _print_findings(findings)
    if any(finding.health is Health.FAILURE for finding in findings):
        raise typer.Exit(FAILURE)


@app.command()
@reported
def ui(
    checkpoints: Annotated[
        list[str] | None,
        typer.Argument(help="Checkpoints, or folders of them; your last queries if none is given."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show queries, running and ended, on a local page until you press Ctrl-C."""
    from icestream.dashboard.command import ui_command

    ui_command(checkpoints or [], port, open_=open_)


app.add_typer(state_commands(reported), name="state")


def _print_findings(findings: list[Finding]) -> None:
    """Print one line per finding, and one more with what to do where that is needed."""
    for finding in findings:
        typer.echo(f"{finding.health:<8} {finding.name:<11} {finding.found}")
        if finding.advice:
            typer.echo(f"{'':<20} -> {finding.advice}")


def use_this_python() -> None:
    """Let Spark start its Python workers with this interpreter, unless told otherwise."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def main() -> None:
    """Run the command line."""
    app()
