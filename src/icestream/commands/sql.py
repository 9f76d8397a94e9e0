"""`icestream sql`: run a statement over the files of a folder; rows appear as windows close.

Idea: the files are read as a stream, so that a folder of any size is processed within the budget.
Statements that are not about windows print the table they compute at the end.
At the end of the files the open windows are closed, unless there is a checkpoint: then they wait
for the next call.

Invariants:
1. The rows are those of the same query written in Python
   (`test_oracle_a_statement_over_files_prints_its_rows`).
2. With a checkpoint, a second call continues where the first stopped
   (`test_a_checkpoint_goes_on_where_it_stopped`).
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from sqlglot import exp

import icestream as ice
from icestream.api.words import reason_of
from icestream.core.errors import DefinitionError, InputError
from icestream.sql.relations.brackets import parse_statement
from icestream.sql.statements.tokens import statements

_INSTANT = timedelta(microseconds=1)
#: how a line of an error begins that says what Spark could not do
_CONDITION = re.compile(r"\[(?!STREAM_FAILED|FOREACH_BATCH)[A-Z][A-Z_.0-9]+\] .*")
FORMATS = ("parquet", "json", "csv", "orc")


@dataclass(frozen=True)
class FileStream:
    """A folder of files that is read as a stream."""

    folder: Path
    format: str
    time: str
    slack: str
    #: columns as DDL; None to take them from the files
    schema: str | None = None

    def stream(self, spark: SparkSession) -> ice.Stream:
        if self.format not in FORMATS:
            msg = f"the format must be one of {', '.join(FORMATS)}; got {self.format!r}"
            raise DefinitionError(msg)
        options = {"header": "true"} if self.format == "csv" else {}
        try:
            schema = self.schema or self._found(spark, options)
            frame = ice.files(spark, str(self.folder), self.format, schema=schema, **options)
        except AnalysisException as error:
            msg = (
                f"{self.folder} cannot be read as {self.format}: {reason_of(error)} Set "
                "the format of the files with --format, and their columns with --schema"
            )
            raise DefinitionError(msg) from None
        return ice.stream(frame, time=self.time, slack=self.slack)

    def table(self, spark: SparkSession) -> DataFrame:
        options = {"header": "true", "inferSchema": "true"} if self.format == "csv" else {}
        try:
            return spark.read.format(self.format).options(**options).load(str(self.folder))
        except AnalysisException as error:
            msg = f"{self.folder} cannot be read as {self.format}: {reason_of(error)}"
            raise DefinitionError(msg) from None

    def _found(self, spark: SparkSession, options: Mapping[str, str]) -> Any:
        infer = {"inferSchema": "true"} if self.format == "csv" else {}
        reader = spark.read.format(self.format).options(**options, **infer)
        return reader.load(str(self.folder)).schema


class Answer:
    """The table that a query computes, as it grows."""

    def __init__(self, query: Any) -> None:
        """Take what `ice.sql` returned."""
        self._query = query
        self.columns: list[str] = list(query.columns)
        self._added: dict[bool, Counter[object]] = {True: Counter(), False: Counter()}
        #: rows by what they are counted by
        self._rows: dict[object, tuple[Any, ...]] = {}
        self._instants = True

    def start(self, folder: str, memory: str, *, follow: bool) -> Any:
        """Start the query over the files that are there, or go on with new ones."""
        writer = self._query.writeStream.foreachBatch(self._add)
        writer = writer.option("checkpointLocation", folder)
        if isinstance(self._query, ice.Events):
            writer = writer.outputMode("changes")
        if not isinstance(self._query, DataFrame):
            writer = writer.memory(memory).option("flush", not follow)
        if not follow:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def run(self, folder: str, memory: str) -> None:
        """Run the query over the files that are there to the end."""
        try:
            self.start(folder, memory, follow=False).awaitTermination()
        except StreamingQueryException as error:
            raise InputError(_cause(error)) from None

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows that hold now: those that stay, or those of all instants."""
        chosen = self._added[not self._instants]
        return sorted((self._rows[each] for each in (+chosen).elements()), key=repr)

    def _add(self, rows: DataFrame, version: int) -> None:
        del version
        for row in rows.toLocalIterator():
            found = tuple(row[name] for name in self.columns)
            values = _comparable(found)
            self._rows[values] = found
            if not isinstance(self._query, ice.Events):
                self._added[False][values] += 1
                continue
            start, end = row["lifetime"]["start"], row["lifetime"]["end"]
            self._instants = self._instants and end is not None and end - start <= _INSTANT
            self._added[end is None][values] += row["change"]


def _cause(error: StreamingQueryException) -> str:
    """Return the line of a failed query that says what Spark could not compute."""
    named = [line for line in str(error).splitlines() if _CONDITION.search(line)]
    found = _CONDITION.search(named[-1]) if named else None
    return reason_of(error) if found is None else found[0].split(" SQLSTATE")[0]


def _comparable(value: Any) -> Any:
    """Return what rows with equal values are counted by."""
    if isinstance(value, dict):
        return tuple(sorted(map(_comparable, value.items()), key=repr))
    if isinstance(value, list | tuple):
        return tuple(map(_comparable, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def sql_command(
    text: str,
    source: FileStream,
    *,
    memory: str,
    output: Path | None,
    checkpoint: Path | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Run a statement; write rows to standard output or to files, as `icestream sql` says."""
    with ExitStack() as ending:
        spark = ice.local_session(app_name="icestream sql")
        result = query_of(text, source.stream(spark))
        kept = checkpoint or Path(ending.enter_context(tempfile.TemporaryDirectory()))
        if not isinstance(result, ice.Result):
            if output is not None or checkpoint is not None or follow:
                msg = (
                    "--output, --checkpoint and --follow are for windows: use ice.sql in a program"
                )
                raise DefinitionError(msg)
            print_table(result, str(kept), memory, as_json=as_json)
            return
        writer = result.writeStream.option("checkpointLocation", str(kept / "sql")).memory(memory)
        if output is None:
            writer = writer.foreachBatch(printing(result.columns, as_json=as_json))
        else:
            writer = writer.format("parquet").option("path", str(output))
        if not follow:
            writer = writer.trigger(availableNow=True).option("flush", checkpoint is None)
        query = writer.start()
        ending.callback(query.stop)
        query.awaitTermination()


def print_table(query: Any, folder: str, memory: str, *, as_json: bool) -> None:
    """Print the table that a query computes over the files that are there."""
    answer = Answer(query)
    answer.run(folder, memory)
    if not as_json:
        print("\t".join(answer.columns))
    for row in answer.rows():
        values = Row(**dict(zip(answer.columns, row, strict=True))).asDict(recursive=True)
        print(json.dumps(values, default=plain) if as_json else "\t".join(map(cell, row)))


def query_of(text: str, stream: ice.Stream) -> Any:
    """Return the query of the command's statement over a stream, under any name."""
    streams: dict[str, Any] = {_name_of_stream(text): stream}
    result = ice.sql(text, **streams)
    if isinstance(result, list):
        msg = "give one statement at a time; start several together with ice.start(...)"
        raise DefinitionError(msg)
    if isinstance(result, str):
        print(result)
        raise SystemExit(0)
    return result


def _name_of_stream(text: str) -> str:
    """Return the first table that a statement reads and does not define."""
    (first, *_) = statements(text)
    explains = first.tokens[0].text.upper() == "EXPLAIN" and len(first.tokens) > 1
    tree = parse_statement(replace(first, tokens=first.tokens[1:]) if explains else first)
    defined = {each.alias_or_name.lower() for each in tree.find_all(exp.CTE)}
    for table in (tree.expression if isinstance(tree, exp.Create) else tree).find_all(exp.Table):
        # TABLE(TUMBLE(TABLE orders, ...)) is read as calls
        inside = next(table.find_all(exp.Column), table)
        name = (inside if isinstance(table.this, exp.Anonymous) else table).name
        if name and name.lower() not in defined:
            return name
    msg = "a statement must name its stream: SELECT ... FROM events [RANGE ...]"
    raise DefinitionError(msg)


def statement(text: str, stream: ice.Stream) -> ice.Result:
    """Return the result of a statement over windows of a stream, under any name."""
    result = query_of(text, stream)
    if not isinstance(result, ice.Result):
        msg = "this works for aggregates of windows: give the stream a window"
        raise DefinitionError(msg)
    return result


def printing(columns: list[str], *, as_json: bool) -> Callable[[DataFrame, int], None]:
    """Return a callback that prints the rows of an SQL statement, after the column names."""
    above = [] if as_json else ["\t".join(columns)]

    def show(rows: DataFrame, version: int) -> None:
        del version
        for row in rows.orderBy(*columns[:1]).toLocalIterator():
            values = row.asDict(recursive=True)
            line = json.dumps(values, default=plain) if as_json else "\t".join(map(cell, row))
            print(*above, line, sep="\n", flush=True)
            above.clear()

    return show


def cell(value: Any) -> str:
    """Return the text of a value that the SQL command prints; of a window, its bounds."""
    if isinstance(value, tuple):
        return " .. ".join(map(cell, value))
    return "" if value is None else str(value)


def plain(value: Any) -> Any:
    """Convert a value that the SQL command writes and JSON has no form for."""
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes | bytearray) else str(value)
