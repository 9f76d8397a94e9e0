"""`icestream state`: show, compare, export, rewrite, verify and repair a checkpoint's state.

Idea: each command is a function over the other modules of this package, which it imports when it
runs; it prints a table for people or JSON for programs.

Invariants:
1. Exit codes: 0 fine, 1 damaged (`verify`, `repair`) or any failure, 2 not a checkpoint
   (`test_each_outcome_has_its_exit_code`).
2. `--json` prints one JSON value (`test_every_command_prints_json`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from icestream.core.errors import DefinitionError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.core.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from icestream.inspect.repair import Repair
    from icestream.inspect.state_rows import Reading
    from icestream.inspect.verify import VerifyReport

P = ParamSpec("P")

DAMAGED = 1
NOT_A_CHECKPOINT = 2
#: maximum width of a column of a table
_WIDEST = 60

Where = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The folder of a query's state.")]
Version = Annotated[int | None, typer.Option(help="Which version; the latest if left out.")]
Operator = Annotated[str | None, typer.Option(help="Only this operator, as `show` names it.")]
Kept = Annotated[str | None, typer.Option(help="Only this kind of rows, as `show` names it.")]
Memory = Annotated[str, typer.Option(help="Memory for restoring a shard.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Keys = Annotated[list[str], typer.Option("--key", help="A key column and its value: name=value.")]
Limit = Annotated[int, typer.Option(min=1, help="The most to print.")]
MEMORY = "256 MB"


def commands(reported: Callable[[Callable[..., None]], Callable[..., None]]) -> typer.Typer:
    """Return the commands under `icestream state`, which print errors in one line."""
    app = typer.Typer(
        name="state",
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Show and check the state of a checkpoint; only rewrite, erase, repair and upgrade "
        "change it.",
    )
    reading = (
        show_command,
        groups_command,
        get_command,
        diff_command,
        export_command,
        copy_command,
    )
    changing = (upgrade_command, rewrite_command, erase_command, verify_command, repair_command)
    for command in (*reading, *changing):
        app.command(command.__name__.removesuffix("_command"))(reported(_reported(command)))
    return app


def _reported(command: Callable[P, None]) -> Callable[P, None]:
    """Make a command end with its own exit code if there is no checkpoint."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from icestream.inspect.access.checkpoint import NotACheckpoint

        try:
            command(*args, **kwargs)
        except NotACheckpoint as error:
            typer.echo(f"icestream: {error}", err=True)
            raise typer.Exit(NOT_A_CHECKPOINT) from error

    return run


def show_command(
    checkpoint: Where,
    version: Version = None,
    memory: Memory = MEMORY,
    quick: Annotated[bool, typer.Option(help="Do not restore and count the state.")] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Show the rows that hold, of a query in mode `now`.")
    ] = False,
    view: Annotated[int, typer.Option(help="Which result, with --now.")] = 0,
    limit: Limit = 1000,
    as_json: AsJson = False,
) -> None:
    """Show plan, versions, segments and size of the state, and the last decisions."""
    if now:
        from icestream.inspect.state_rows import now_rows

        rows = list(islice(now_rows(checkpoint, view), limit))
        _print_json(rows) if as_json else _print_table(rows, "rows that hold")
        return
    reading = _reading(checkpoint, version, memory)
    report = _overview(reading)
    if not quick:
        report["state"] = [asdict(each) for each in reading.sizes()]
        report["notes"] = list(reading.notes)
    if as_json:
        _print_json(report)
        return
    typer.echo(f"checkpoint  {report['checkpoint']}")
    typer.echo(f"versions    {_spans(report['versions'])}; can be read: {_spans(report['kept'])}")
    for name in ("version", "batch", "watermark", "shards", "totals", "decisions"):
        typer.echo(f"{name:<11} {_shown(report[name])}")
    typer.echo("plan")
    for line in json.dumps(report["plan"], indent=2, ensure_ascii=False).splitlines():
        typer.echo(f"  {line}")
    _print_table(report["segments"], "segments")
    if not quick:
        _print_table(report["state"], "state")
        _print_notes(report["notes"])


def groups_command(
    checkpoint: Where,
    operator: Operator = None,
    kept: Kept = None,
    version: Version = None,
    limit: Limit = 20,
    memory: Memory = MEMORY,
    as_json: AsJson = False,
) -> None:
    """List the groups with the most state: key, rows and bytes, largest first."""
    reading = _reading(checkpoint, version, memory, operator=operator, kept=kept)
    found = [asdict(group) for group in reading.groups(limit)]
    if as_json:
        _print_json(found)
        return
    _print_table(found, "groups")
    _print_notes(reading.notes)


def get_command(
    checkpoint: Where,
    key: Keys,
    operator: Operator = None,
    kept: Kept = None,
    version: Version = None,
    memory: Memory = MEMORY,
    as_json: AsJson = False,
) -> None:
    """Print the whole state of one group: its stored rows, or those of its open windows."""
    given = dict(_pair(each) for each in key)
    reading = _reading(checkpoint, version, memory, operator=operator, kept=kept, key=given)
    found = list(_rows(reading))
    if as_json:
        _print_json(found)
        return
    for table in reading.tables:
        mine = [
            row for row in found if (row["operator"], row["kept"]) == (table.operator, table.name)
        ]
        _print_table([row["row"] for row in mine], f"{table.operator}, {table.name}: {table.text}")
    _print_notes(reading.notes)


def diff_command(
    checkpoint: Where,
    before: Annotated[int, typer.Argument(help="A version that can be read.")],
    after: Annotated[int, typer.Argument(help="Another one.")],
    operator: Operator = None,
    kept: Kept = None,
    limit: Limit = 1000,
    memory: Memory = MEMORY,
    as_json: AsJson = False,
) -> None:
    """Print the rows of state that were added and removed between two versions."""
    from icestream.inspect.differences import differences

    reading = _reading(checkpoint, None, memory, operator=operator, kept=kept)
    found = list(islice(differences(reading, before, after), limit + 1))
    if as_json:
        rows = [asdict(each) | {"row": json.loads(each.row)} for each in found[:limit]]
        _print_json({"changes": rows, "more": len(found) > limit})
        return
    for each in found[:limit]:
        typer.echo(f"{'+' if each.change > 0 else '-'} {each.operator}, {each.kept}: {each.row}")
    if len(found) > limit:
        typer.echo(f"... and more; see --limit (now {limit})")
    typer.echo(f"{'more than ' * (len(found) > limit)}{min(len(found), limit)} rows differ")


def export_command(
    checkpoint: Where,
    to: Annotated[Path, typer.Option(help="The Parquet file to write; must not exist.")],
    operator: Operator = None,
    kept: Kept = None,
    version: Version = None,
    memory: Memory = MEMORY,
    as_json: AsJson = False,
) -> None:
    """Write the state to a Parquet file, with typed columns if one kind of rows is chosen."""
    from icestream.inspect.state_rows import write_parquet

    reading = _reading(checkpoint, version, memory, operator=operator, kept=kept)
    rows = write_parquet(reading, to)
    size = to.stat().st_size
    value = {"file": str(to), "rows": rows, "bytes": size}
    _print(value, f"{rows} rows, {format_bytes(size)} in {to}", as_json)


def copy_command(
    checkpoint: Where,
    to: Annotated[str, typer.Option(help="The folder of the copy; must not exist.")],
    clone: Annotated[
        bool, typer.Option("--clone", help="Give the copy an identity of its own.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy the last version of a checkpoint, also while its query runs.

    A backup replaces the original: tables know what they have of it. A clone runs beside the
    original, and writes rows of its own.
    """
    from icestream.inspect.copying import copy_checkpoint

    done = copy_checkpoint(checkpoint, to, clone=clone)
    size = format_bytes(done.bytes)
    _print(asdict(done), f"version {done.version}: {done.files} files, {size} in {to}", as_json)


def upgrade_command(checkpoint: Where, as_json: AsJson = False) -> None:
    """Convert a checkpoint of an older format, in place; its query must be stopped.

    What cannot be converted is refused with the reason, and stays as it is.
    """
    from icestream.inspect.upgrade import upgrade_checkpoint

    done = upgrade_checkpoint(checkpoint)
    text = f"{done.root}: format {done.before} became {done.after}, {done.files} files"
    if not done.files:
        text = f"{done.root} has format {done.after} already"
    _print(asdict(done), text, as_json)


def rewrite_command(
    checkpoint: Where,
    rows: Annotated[Path, typer.Option("--from", help="A Parquet file, as `export` writes it.")],
    operator: Operator = None,
    kept: Kept = None,
    others: Annotated[
        str, typer.Option(help="What to do with groups without a row: drop or keep.")
    ] = "drop",
    memory: Memory = MEMORY,
    as_json: AsJson = False,
) -> None:
    """Replace state of a stopped query with edited rows, in a new version."""
    import pyarrow.parquet as pq

    from icestream.inspect.rewrite import rewrite as write

    try:
        table = pq.read_table(rows)
    except (OSError, ValueError) as error:
        msg = f"{rows} cannot be read as Parquet: {error}"
        raise DefinitionError(msg) from error
    reading = _reading(checkpoint, None, memory, operator=operator, kept=kept)
    done = write(reading, table, others=others)
    size = format_bytes(done.bytes)
    text = f"version {done.version}: {done.groups} groups, {done.rows} rows, {size}"
    if not done.groups:
        text = f"no row differs from version {done.version}"
    _print(asdict(done), text, as_json)


def erase_command(
    checkpoint: Where, key: Keys, memory: Memory = MEMORY, as_json: AsJson = False
) -> None:
    """Erase one key of a stopped query: from state, log, kept versions and `now` tables.

    Earlier versions are deleted. Rows in sinks and Spark's log of the source are not reached.
    """
    from icestream.inspect.erase import erase as erase_key

    reading = _reading(checkpoint, None, memory)
    done = erase_key(reading, dict(_pair(each) for each in key))
    text = f"version {done.version}: {done.groups} groups erased, {done.files} files deleted"
    _print(asdict(done), text, as_json)


def verify_command(
    checkpoint: Where,
    quick: Annotated[bool, typer.Option(help="Check files; do not restore the state.")] = False,
    memory: Memory = MEMORY,
    as_json: AsJson = False,
) -> None:
    """Check every checksum and reference. Exit codes: 0 fine, 1 damaged, 2 no checkpoint."""
    from icestream.inspect.access.checkpoint import Checkpoint
    from icestream.inspect.verify import verify as check

    report = check(Checkpoint(checkpoint), state=not quick, memory=parse_bytes(memory))
    if as_json:
        _print_json(asdict(report) | {"fine": report.is_fine})
    else:
        _print_report(report)
    if not report.is_fine:
        raise typer.Exit(DAMAGED)


def repair_command(
    checkpoint: Where,
    to: Annotated[str | None, typer.Option(help="Write a repaired copy to this folder.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Repair in place; dropped files are moved, not deleted.")
    ] = False,
    memory: Memory = MEMORY,
    as_json: AsJson = False,
) -> None:
    """Go back to the newest version that is intact, and print what is lost.

    Without --to or --yes it only prints what it would do. The exit code is 1 if there is damage
    that was not repaired.
    """
    from icestream.inspect.access.checkpoint import Checkpoint
    from icestream.inspect.repair import plan_repair, repair_copy, repair_in_place

    if to is not None and yes:
        msg = "--to writes a copy and --yes repairs in place: give one of them"
        raise DefinitionError(msg)
    opened = Checkpoint(checkpoint)
    found = plan_repair(opened, parse_bytes(memory))
    done = None
    if found.is_possible and to is not None:
        repair_copy(opened, found, to)
        done = f"a repaired copy is in {to}"
    elif found.is_possible and yes:
        done = f"repaired in place; the dropped files are in {repair_in_place(opened, found)}"
    if as_json:
        _print_json(asdict(found) | {"done": done})
    else:
        _print_repair(found, done)
    if not found.report.is_fine and done is None:
        raise typer.Exit(DAMAGED)


# -- reading ------------------------------------------------------------------------------


def _reading(checkpoint: str, version: int | None, memory: str, **chosen: Any) -> Reading:
    from icestream.inspect.state_rows import Reading

    return Reading(checkpoint, version, memory=parse_bytes(memory), **chosen)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        msg = f"--key {text}: write a key column and its value as name=value"
        raise DefinitionError(msg)
    return name, value


def _rows(reading: Reading) -> Iterable[dict[str, Any]]:
    from icestream.inspect.access.adapter_protocol import plain
    from icestream.inspect.state_rows import group_names

    for found in reading.rows():
        for group, row in zip(group_names(found), found.rows.to_pylist(), strict=True):
            yield {
                "operator": found.table.operator,
                "kept": found.table.name,
                "shard": found.shard,
                "group": group,
                "row": plain(row),
            }


def _overview(reading: Reading) -> dict[str, Any]:
    checkpoint, commit = reading.checkpoint, reading.commit
    classes: dict[str, dict[str, Any]] = {}
    for each in checkpoint.live(commit.version):
        sums = classes.setdefault(
            each.lifetime, {"lifetime": each.lifetime, "segments": 0, "records": 0, "bytes": 0}
        )
        sums["segments"] += 1
        sums["records"] += each.info.records
        sums["bytes"] += each.info.bytes
    return {
        "checkpoint": checkpoint.root,
        "plan": checkpoint.plan,
        "versions": checkpoint.versions,
        "kept": checkpoint.kept(),
        "version": commit.version,
        "batch": commit.batch,
        "watermark": _instant(commit.watermark),
        "seen": [None if each is None else _instant(each) for each in commit.seen],
        "shards": len(commit.bases),
        "totals": dict(commit.totals),
        "decisions": dict(commit.decisions),
        "segments": list(classes.values()),
        "results": {
            "files": len(commit.results) + len(commit.late),
            "bytes": sum(info.bytes for info in (*commit.results, *commit.late)),
        },
    }


def _instant(at: Micros) -> str | None:
    if at == MINUS_INFINITY:
        return None
    try:
        return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=at)).isoformat()
    except OverflowError:
        return f"{at} microseconds"


# -- printing -----------------------------------------------------------------------------


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def _print(value: Any, text: str, as_json: bool) -> None:
    _print_json(value) if as_json else typer.echo(text)


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}")


def _print_report(report: VerifyReport) -> None:
    typer.echo(
        f"{report.files} files, {format_bytes(report.bytes)} of records in {report.root}; "
        f"intact versions: {_spans(report.intact)}"
    )
    if report.rows is not None:
        typer.echo(f"{report.rows} rows of state restored and read")
    for finding in report.findings:
        needed = f" (versions {_spans(finding.versions)})" if finding.versions else ""
        typer.echo(f"DAMAGED {finding.path}: {finding.what}{needed}")
    if report.ignored:
        typer.echo(f"{len(report.ignored)} files that no version names were not checked")
    _print_notes(report.notes)
    typer.echo("fine" if report.is_fine else f"{len(report.findings)} findings")


def _print_repair(found: Repair, done: str | None) -> None:
    _print_report(found.report)
    if found.report.is_fine:
        typer.echo("nothing to repair")
        return
    if found.version is not None:
        typer.echo(f"{'went' if done else 'would go'} back to version {found.version}")
    for what in found.lost:
        typer.echo(f"lost: {what}")
    for path in found.dropped:
        typer.echo(f"dropped: {path}")
    for what in found.advice:
        typer.echo(f"to do: {what}")
    if done:
        typer.echo(done)
    elif found.is_possible:
        typer.echo(
            "nothing was changed: --to FOLDER writes a repaired copy, --yes repairs in place"
        )


def _print_table(rows: Sequence[dict[str, Any]], title: str) -> None:
    typer.echo(f"{title} ({len(rows)})")
    if not rows:
        return
    names = list(rows[0])
    cells = [[_shown(row[name], name) for name in names] for row in rows]
    widths = [max(len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(names)]
    for line in (names, *cells):
        padded = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        typer.echo("  " + "  ".join(padded).rstrip())


def _shown(value: Any, name: str = "") -> str:
    if name == "bytes":
        return format_bytes(value)
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _WIDEST or not name else text[: _WIDEST - 3] + "..."


def _spans(versions: Sequence[int]) -> str:
    """Return numbers in short form: 1, 3-5."""
    spans: list[list[int]] = []
    for version in versions:
        if spans and version == spans[-1][1] + 1:
            spans[-1][1] = version
        else:
            spans.append([version, version])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans) or "none"
