"""`icestream demo`: the call centres, the one application that ships with the package.

Idea: the command imports the demo when it runs. With `--ui` the queries are also shown on a local
page; on a terminal the page stays open after the demo has ended, until Ctrl-C. The programs in
`examples/` run their demos through `run_demo` and share the options below.

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

Memory = Annotated[str, typer.Option(help="The memory budget of the query.")]
Range = Annotated[str, typer.Option(help="The range of the window.")]
Rate = Annotated[
    int | None,
    typer.Option(help="Events per second of event time; by default they fill the window."),
]
Seed = Annotated[int, typer.Option(help="Another seed gives another stream.")]
Keep = Annotated[
    Path | None, typer.Option(help="Keep events, results and checkpoints in this new folder.")
]
Ui = Annotated[bool, typer.Option("--ui", help="Also show the queries on a local page.")]


def stay() -> None:
    """Keep the page open after the command `icestream demo` until Ctrl-C, on a terminal."""
    if sys.stdout.isatty():
        typer.echo("The page stays open until you press Ctrl-C.")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


def use_this_python() -> None:
    """Let Spark's workers use the Python of the demo command, unless one is configured."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def run_demo(run: Callable[..., int], *, ui: bool, **options: Any) -> None:
    """Run the command of a demo with this Python in its workers; exit with its exit code."""
    use_this_python()
    code = run(ui=ui, **options)
    if ui:
        stay()
    raise typer.Exit(code)


def demo(
    events: Annotated[int, typer.Option(help="How many events to generate.")] = 12_000_000,
    memory: Memory = "64 MB",
    window: Range = "24 hours",
    slide: Annotated[str, typer.Option(help="The interval between results.")] = "10 seconds",
    by: Annotated[
        str, typer.Option(help="The grouping key, or `all`: 144 figures by eight keys.")
    ] = "serviceId",
    rate: Rate = None,
    fast_forward: Annotated[
        float | None,
        typer.Option(
            help="Replay this many times faster than event time; by default at full speed."
        ),
    ] = None,
    seed: Seed = 1,
    keep: Keep = None,
    kill: Annotated[
        bool, typer.Option("--kill", help="Kill Spark's Python workers on the way.")
    ] = False,
    spark_window: Annotated[
        bool,
        typer.Option(
            "--spark-window", help="Also measure Spark's own window() over a minute of the events."
        ),
    ] = False,
    ui: Ui = False,
) -> None:
    """Run a day of 20 call centres through a window of 24 hours that slides every 10 seconds."""
    from icestream.demo.call_centre.demo import demo as run

    run_demo(
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
        kill=kill,
        spark_window=spark_window,
        ui=ui,
    )
