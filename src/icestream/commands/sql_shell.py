r"""`icestream sql` without a statement: a shell with history, completion and `\watch`.

Idea: streams and tables are folders with names. A statement runs over the files that are there and
prints the table it computes; `\watch` runs it on and prints the table again and again, or shows
the table of a query that another program runs, or the files that one writes.

    ice> \stream bid bids at
    ice> SELECT item, max(price) AS best FROM bid GROUP BY item;
    ice> \watch 2 chk/best
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from icestream.api.columns import reason_of
from icestream.commands.sql import Answer, FileStream, cell
from icestream.core.errors import DefinitionError, IcestreamError
from icestream.inspect.state_rows import now_rows
from icestream.sql.statements.aggregates import NAMES
from icestream.sql.statements.tokens import statements
from icestream.state.versions.commits import COMMITS

HISTORY = Path("~/.local/state/icestream/sql_history")
SHOWN = 20
_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "ORDER BY", "LIMIT", "JOIN", "LEFT JOIN",
    "FULL JOIN", "UNION ALL", "EXPLAIN", "CREATE VIEW", "WITH", "OVER", "PARTITION BY", "TUMBLE",
    "HOP", "CUMULATE", "SESSION", "INTERVAL", "DISTINCT", "EXISTS", "FILTER", "GROUPING SETS",
)  # fmt: skip
_HELP = """\\stream NAME FOLDER TIME [FORMAT [SLACK]]   files as a stream, by their event time
\\table NAME FOLDER [FORMAT]                   files as a static table
\\d                                           streams, tables and their columns
\\watch [SECONDS] STATEMENT | CHECKPOINT | FOLDER   show a table again and again, until Ctrl-C
\\q                                           leave
A statement ends with ; and may go over several lines; EXPLAIN before it shows its plan."""

Print = Callable[[str], None]


@dataclass
class Shell:
    """What the user has named, and how to run statements over it."""

    spark: SparkSession
    memory: str
    show: Print = print
    tables: dict[str, Any] = field(default_factory=dict)
    #: views that were created, in front of every statement
    _views: list[str] = field(default_factory=list)

    def run(self, text: str) -> bool:
        """Run a command or a statement; return whether the shell goes on."""
        try:
            if not text.startswith("\\"):
                self._statement(text)
                return True
            name, _, rest = text[1:].strip().partition(" ")
            commands: dict[str, Callable[[str], None]] = {
                "stream": self._stream, "table": self._table, "d": self._describe,
                "watch": self._watch,
            }  # fmt: skip
            if name in ("q", "quit", "exit"):
                return False
            if name in commands:
                commands[name](rest.strip().rstrip(";"))
            else:
                self.show(_HELP)
        except IcestreamError as error:
            self.show(str(error))
        except PySparkException as error:
            self.show(reason_of(error))
        except KeyboardInterrupt:
            self.show("")
        return True

    def words(self) -> list[str]:
        columns = [name for each in self.tables.values() for name in each.columns]
        return [*_KEYWORDS, *sorted(NAMES), *self.tables, *dict.fromkeys(columns)]

    # -- commands --------------------------------------------------------------------------

    def _stream(self, rest: str) -> None:
        parts = rest.split(maxsplit=4)
        if len(parts) < 3:
            msg = "write \\stream NAME FOLDER TIME [FORMAT [SLACK]]"
            raise DefinitionError(msg)
        name, folder, at, kind, slack = parts + ["parquet", "0 seconds"][len(parts) - 3 :]
        self.tables[name] = FileStream(Path(folder), kind, at, slack).stream(self.spark)
        self._describe(name)

    def _table(self, rest: str) -> None:
        parts = rest.split()
        if len(parts) < 2:
            msg = "write \\table NAME FOLDER [FORMAT]"
            raise DefinitionError(msg)
        name, folder, kind = [*parts, "parquet"][:3]
        self.tables[name] = FileStream(Path(folder), kind, "", "").table(self.spark)
        self._describe(name)

    def _describe(self, name: str) -> None:
        for each, table in self.tables.items():
            if name in ("", each):
                kind = "table" if isinstance(table, DataFrame) else "stream"
                self.show(f"{kind} {each}: {', '.join(table.columns)}")

    def _statement(self, text: str) -> None:
        query = self._query(text)
        if isinstance(query, str):
            self.show(query)
        elif query is not None:
            with tempfile.TemporaryDirectory() as folder:
                answer = Answer(query)
                answer.run(folder, self.memory)
                self._print(answer.columns, answer.rows())

    def _query(self, text: str) -> Any:
        """Return what a statement computes; None if it creates a view."""
        first = next(iter(statements(text))).tokens[0].text.upper()
        if first == "CREATE":
            reads = next(iter(self.tables), "t")
            ice.sql(f"{self._before()}{text}; SELECT 1 AS x FROM {reads}", **self.tables)
            self._views.append(text.strip().rstrip(";"))
            return None
        found = ice.sql(self._before() + text, **self.tables)
        if isinstance(found, list):
            msg = "give one statement at a time"
            raise DefinitionError(msg)
        return found

    def _before(self) -> str:
        return "".join(f"{each};\n" for each in self._views)

    def _watch(self, rest: str) -> None:
        seconds = 2.0
        if (found := re.match(r"(\d+(?:\.\d+)?)\s+", rest)) is not None:
            seconds, rest = float(found[1]), rest[found.end() :]
        if Path(rest).exists():
            self._repeat(seconds, partial(watched_rows, Path(rest)))
            return
        if " " not in rest:
            msg = f"there is nothing at {rest!r}: write a statement, a checkpoint or a folder"
            raise DefinitionError(msg)
        query = self._query(rest)
        if query is None or isinstance(query, str):
            msg = "\\watch is followed by a SELECT, a checkpoint or a folder"
            raise DefinitionError(msg)
        with tempfile.TemporaryDirectory() as folder:
            answer = Answer(query)
            started = answer.start(folder, self.memory, follow=True)
            try:
                self._repeat(seconds, lambda: (answer.columns, answer.rows()))
            finally:
                started.stop()

    def _repeat(
        self, seconds: float, read: Callable[[], tuple[Sequence[str], Iterable[Sequence[Any]]]]
    ) -> None:
        with suppress(KeyboardInterrupt):
            while True:
                self.show(time.strftime("%H:%M:%S"))
                self._print(*read())
                time.sleep(seconds)

    def _print(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        found = [[cell(value) for value in row] for row in rows]
        shown = [list(columns), *found[:SHOWN]]
        widths = [max(len(row[place]) for row in shown) for place in range(len(columns))]
        for row in shown:
            line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
            self.show(line.rstrip())
        more = f", {SHOWN} shown" if len(found) > SHOWN else ""
        self.show(f"({len(found)} rows{more})")


def watched_rows(place: Path) -> tuple[Sequence[str], list[Sequence[Any]]]:
    """Return the table of a query in mode `now` by its checkpoint, or the rows of Parquet files."""
    if (place / COMMITS).exists():
        held = list(now_rows(str(place)))
        return list(held[0]) if held else [], [list(each.values()) for each in held]
    parquet = ds.ParquetFileFormat(coerce_int96_timestamp_unit="us")
    table = ds.dataset(place, format=parquet, exclude_invalid_files=True).to_table()
    return table.column_names, [list(each.values()) for each in table.to_pylist()]


def completions(text: str, words: Iterable[str]) -> list[str]:
    """Return the words that begin as a text does."""
    return [each for each in words if text and each.lower().startswith(text.lower())]


def lines_of(read: Callable[[str], str]) -> Iterator[str]:
    """Yield commands and statements; a statement ends with a semicolon."""
    held: list[str] = []
    while True:
        try:
            line = read("... " if held else "ice> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            held = []
            continue
        if not held and not line.strip():
            continue
        held.append(line)
        if held[0].lstrip().startswith("\\") or line.rstrip().endswith(";"):
            yield "\n".join(held).strip()
            held = []


def sql_shell(memory: str) -> None:
    """Read commands from the terminal until the end."""
    shell = Shell(ice.local_session(app_name="icestream sql"), memory)
    _with_history(shell)
    print(f"{_HELP}\n")
    for text in lines_of(input):
        if not shell.run(text):
            return


def _with_history(shell: Shell) -> None:
    """Let the terminal remember lines and complete words."""
    try:
        import readline  # noqa: PLC0415 - not on every system
    except ImportError:
        return
    import atexit  # noqa: PLC0415 - only the shell needs it

    history = HISTORY.expanduser()
    with suppress(OSError):
        readline.read_history_file(history)

    def save() -> None:
        with suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)

    def complete(text: str, number: int) -> str | None:
        found = completions(text, shell.words())
        return found[number] if number < len(found) else None

    atexit.register(save)
    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
