"""The `icestream` command.

Idea: each command is one function that imports its code when it runs, so `--help` is instant and
`doctor` works without Spark. An error that Icestream raises on purpose becomes one line on standard
error and an exit code; anything else is a bug and keeps its traceback.

Invariants:
1. An `IcestreamError` prints one line, no traceback (`test_an_error_is_one_clean_line`).
2. Each exit code in `--help` is the one returned (`test_each_kind_of_error_has_its_exit_code`).
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from icestream.commands.demo import demo, stay, use_this_python
from icestream.commands.state import commands as state_commands
from icestream.core.errors import BudgetError, DamageError, IcestreamError
from icestream.core.units import parse_bytes

if TYPE_CHECKING:
    from icestream.doctor import Finding

P = ParamSpec("P")

FAILURE = 1
DAMAGED = 3
OVER_BUDGET = 4


def exit_code(error: IcestreamError) -> int:
    """Return the exit code of the command line: 3 damaged checkpoint, 4 budget, 1 any other."""
    match error:
        case DamageError():
            return DAMAGED
        case BudgetError():
            return OVER_BUDGET
        case _:
            return FAILURE


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """Make a command of the CLI end with one line and the exit code of its error."""

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
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def about() -> None:
    """Stateful streaming queries on Spark whose state is far larger than memory.

    Write a query with PySpark's names and give it a memory budget in bytes. Results are exact;
    state that does not fit in the budget is read back from the query's own log on disk.

    Exit codes: 0 fine, 1 failure, 2 wrong usage, 3 damaged checkpoint, 4 budget too small,
    130 interrupted.
    """


@app.command()
def version() -> None:
    """Print the versions of Icestream and Spark."""
    for package in ("icestream", "pyspark"):
        typer.echo(f"{package} {metadata.version(package)}")


app.command("demo")(reported(demo))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": False})
@reported
def run(
    context: typer.Context,
    program: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="A Python file; see below.")
    ],
    ui: Annotated[bool, typer.Option("--ui", help="Show its queries on a local page.")] = False,
) -> None:
    """Run a program; arguments after -- go to the program.

    Spark's workers run the same Python as the program. `ice.local_session()` starts Spark with the
    settings that Icestream recommends. With --ui, on a terminal, the page stays until Ctrl-C.
    """
    from icestream.commands.program import run_program

    use_this_python()
    code = run_program(program, context.args, ui=ui)
    if ui:
        stay()
    raise typer.Exit(code)


@app.command()
@reported
def sql(
    statement: Annotated[
        str | None, typer.Argument(help="One statement; a shell starts without one.")
    ] = None,
    input_: Annotated[
        Path | None,
        typer.Option("--input", exists=True, help="The folder whose files are the stream."),
    ] = None,
    time: Annotated[str | None, typer.Option(help="The column with the event time.")] = None,
    format_: Annotated[
        str, typer.Option("--format", help="The format of the files: parquet, json, csv or orc.")
    ] = "parquet",
    schema: Annotated[
        str | None, typer.Option(help="Columns and types; read from the files if left out.")
    ] = None,
    slack: Annotated[str, typer.Option(help="How late events may be.")] = "0 seconds",
    memory: Annotated[str, typer.Option(help="The memory budget.")] = "256 MB",
    output: Annotated[
        Path | None, typer.Option(help="Write Parquet files here instead of printing rows.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Store state here, and continue from it next time.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for more files until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per row.")] = False,
) -> None:
    """Run a statement over files and print rows as windows close; or start a shell.

    At the end of the files the open windows are closed, unless there is a checkpoint.
    """
    from icestream.commands.sql import FileStream, sql_command
    from icestream.core.errors import DefinitionError

    use_this_python()
    if statement is None:
        from icestream.commands.sql_shell import sql_shell

        sql_shell(memory)
        return
    if input_ is None or time is None:
        msg = "a statement needs --input FOLDER and --time COLUMN"
        raise DefinitionError(msg)
    sql_command(
        statement,
        FileStream(input_, format_, time, slack, schema),
        memory=memory,
        output=output,
        checkpoint=checkpoint,
        follow=follow,
        as_json=as_json,
    )


@app.command("warm")
@reported
def warm_command(
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes that compile; one per core by default.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress bar.")] = False,
) -> None:
    """Compile all kernels now, so that the first query starts at once.

    Run it when you build an image: machine code is stored below XDG_CACHE_HOME or ~/.cache.
    """
    from icestream.commands.warm import warm

    typer.echo(warm(processes, quiet=quiet))


@app.command()
@reported
def plan(
    query: Annotated[
        str | None, typer.Argument(help="A CQL statement, a .sql file, or a .py program.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Events per second of event time.")] = 1000.0,
    keys: Annotated[float, typer.Option(help="Groups in the longest window.")] = 1000.0,
    pane_keys: Annotated[
        float | None, typer.Option(help="Groups in one pane; from rate and keys if left out.")
    ] = None,
    event_bytes: Annotated[
        float | None, typer.Option(help="Bytes of an event; from its columns if left out.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="The memory budget to compare with.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Columns of the stream of a statement, with their types.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="The column with the event time.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Compare the estimates of past runs with what they used.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Estimate what a query will use before it runs: memory, disk and traffic per operator."""
    from icestream.commands.plan import forecast_report, past_runs, past_text, plan_text, planned
    from icestream.plan.forecast import StreamLoad

    if query is None and checkpoint is None:
        msg = "give a statement, a file with a statement, a program, or --checkpoint"
        raise typer.BadParameter(msg)
    use_this_python()
    report: dict[str, Any] = {}
    plans = {} if query is None else planned(query, columns, time)
    if query is not None:
        report = forecast_report(plans, StreamLoad(rate, keys, pane_keys, event_bytes), memory)
    if checkpoint is not None:
        runs = past_runs(checkpoint, *plans.values() if len(plans) == 1 else ())
        report["pastRuns"] = [{**asdict(each), "ratio": each.ratio} for each in runs]
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    if query is not None:
        typer.echo(plan_text(report))
    if checkpoint is not None:
        typer.echo(past_text(runs))


@app.command()
@reported
def doctor(
    folder: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="Where checkpoints would be; by default the folder for temporary files.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Check Java, Spark, Python, cores, memory and the disk, and measure synced writes.

    The exit code is 0 if Icestream can run here, even with warnings, and 1 if something is missing.
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
        typer.Argument(help="Checkpoints, or folders of them; by default your last queries."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free port.")] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show queries, running and ended, on a local page until you press Ctrl-C."""
    from icestream.commands.ui import ui_command

    ui_command(checkpoints or [], port, open_=open_)


@app.command()
@reported
def compact(
    folder: Annotated[str, typer.Argument(help="The table: a folder, also one in a store.")],
    target: Annotated[str, typer.Option(help="The size that files should have.")] = "256 MB",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Merge small files of a Parquet table that a query wrote and does not write to now."""
    from icestream.runtime.tables.compaction import compact as merge

    done = merge(folder, parse_bytes(target))
    if as_json:
        typer.echo(json.dumps(asdict(done)))
    else:
        typer.echo(f"{done.before} files are {done.after} now")


app.add_typer(state_commands(reported), name="state")


def _print_findings(findings: list[Finding]) -> None:
    """Print one line per finding, and a second line with advice where there is some."""
    for finding in findings:
        typer.echo(f"{finding.health:<8} {finding.name:<11} {finding.found}")
        if finding.advice:
            typer.echo(f"{'':<20} -> {finding.advice}")


def main() -> None:
    """Run the command line."""
    app()
