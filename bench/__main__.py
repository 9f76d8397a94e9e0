"""Measure a claim: `python -m bench NAME --size small|full --json FILE`, or `--list` the claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.command import bench_command
from icestream.cli import reported
from icestream.commands.demo import use_this_python


@reported
def bench(
    name: Annotated[str | None, typer.Argument(help="The claim to measure; see --list.")] = None,
    size: Annotated[str, typer.Option(help="How much to measure: small or full.")] = "small",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the measurements to this file.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Measure some cases, where a claim has names for them: a,b.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the claims.")] = False,
) -> None:
    """Measure a claim on this machine; the exit code is 1 if it does not hold here."""
    use_this_python()
    code = bench_command(name=name, size=size, json_file=json_file, list_=list_, only=only)
    raise typer.Exit(code)


app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(bench)

if __name__ == "__main__":
    app(prog_name="python -m bench")
