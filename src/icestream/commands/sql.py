"""`icestream sql`: run a statement over the files of a folder; rows appear as windows close.

Idea: the files are read as a stream, so that a folder of any size is processed within the budget.
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
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from icestream.core.errors import DefinitionError

FORMATS = ("parquet", "json", "csv", "orc")
_FROM = re.compile(r"\bFROM\s+`?(\w+)`?", re.IGNORECASE)


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
        """Return the stream."""
        if self.format not in FORMATS:
            msg = f"the format must be one of {', '.join(FORMATS)}; got {self.format!r}"
            raise DefinitionError(msg)
        options = {"header": "true"} if self.format == "csv" else {}
        try:
            schema = self.schema or self._found(spark, options)
            frame = ice.files(spark, str(self.folder), self.format, schema=schema, **options)
        except AnalysisException as error:
            msg = (
                f"{self.folder} cannot be read as {self.format}: {str(error).splitlines()[0]} Set "
                "the format of the files with --format, and their columns with --schema"
            )
            raise DefinitionError(msg) from None
        return ice.stream(frame, time=self.time, slack=self.slack)

    def _found(self, spark: SparkSession, options: Mapping[str, str]) -> Any:
        infer = {"inferSchema": "true"} if self.format == "csv" else {}
        reader = spark.read.format(self.format).options(**options, **infer)
        return reader.load(str(self.folder)).schema


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
    """Run a statement; write rows to standard output or to files.

    Args:
        text: one CQL statement.
        source: the files of its stream.
        memory: the memory budget.
        output: a folder for Parquet files; None to print rows.
        checkpoint: where state is stored for the next call; None for a temporary folder.
        follow: wait for more files, until Ctrl-C.
        as_json: print a JSON object per row.
    """
    with ExitStack() as ending:
        spark = ice.local_session(app_name="icestream sql")
        result = statement(text, source.stream(spark))
        kept = checkpoint or Path(ending.enter_context(tempfile.TemporaryDirectory()))
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


def statement(text: str, stream: ice.Stream) -> ice.Result:
    """Return the result of the SQL statement of the command over a stream, under any name."""
    found = _FROM.search(text)
    if found is None:
        msg = "a statement must name its stream: SELECT ... FROM events [RANGE ...]"
        raise DefinitionError(msg)
    streams: dict[str, Any] = {found[1]: stream}
    result = ice.sql(text, **streams)
    if isinstance(result, list):
        msg = "give one statement at a time; start several together with ice.start(...)"
        raise DefinitionError(msg)
    if not isinstance(result, ice.Result):
        msg = "this command prints the rows of windows: give the stream a window; use ice.sql in a "
        msg += "program for other statements"
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
