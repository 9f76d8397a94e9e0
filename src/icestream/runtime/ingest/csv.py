"""CSV files that pyarrow and Spark read alike.

Idea: text that both parsers accept means the same to both, except for a few forms, which are
detected: quotes inside values, quoted line ends, escapes, blanks around values, hexadecimal
numbers, floats that are not finite, time zones in the middle of a time. Spark reads files that
contain one or that pyarrow refuses.

Invariants:
1. Text that is read here, Spark reads alike (`test_oracle_awkward_text_is_read_as_spark_reads_it`).
2. A line is read with the piece that contains its first byte
   (`test_pieces_of_a_csv_file_share_its_lines_without_overlap`).

Limits: no decimals; times without a zone only if the session is in UTC, because the rules of
pyarrow and Java for other zones may differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from icestream.core.times import UTC_ZONES
from icestream.kernels.delimited_text import is_plain_text
from icestream.runtime.ingest.file_splits import FileSplit
from icestream.runtime.ingest.reader import UnlikeSpark

#: bytes that are parsed at once, and bytes that are searched for the end of a line
BLOCK_BYTES = 4 << 20
LINE_BYTES = 64 << 10

#: options of the stream that select files, or that do not change the text
_NEUTRAL = {
    *("path", "header", "sep", "delimiter", "nullvalue", "mode", "inferschema"),
    *("maxfilespertrigger", "maxbytespertrigger", "latestfirst", "maxfileage", "maxcachedfiles"),
    *("discardcachedinputratio", "filenameonly", "cleansource", "sourcearchivedir"),
    *("recursivefilelookup", "pathglobfilter", "modifiedbefore", "modifiedafter"),
}
#: extensions of files that Spark decompresses
_PACKED = (".gz", ".bz2", ".deflate", ".lz4", ".snappy", ".zst", ".xz")
#: characters of the shortest time ending in Z that Spark accepts
_ZONED_LETTERS = len("2020-01-01T00:00:00Z")


@dataclass(frozen=True)
class CsvReader:
    """Reads the lines of a piece."""

    #: all columns of the files, in order
    names: tuple[str, ...]
    header: bool
    separator: str
    #: text that means null, in addition to empty text
    null: str
    #: whether times without a zone are in UTC
    utc: bool

    @classmethod
    def of(
        cls, names: tuple[str, ...], options: Mapping[str, str], conf: Mapping[str, str]
    ) -> CsvReader | None:
        """Return the reader for a stream's options and the session's settings, or None."""
        chosen = {key.lower(): value for key, value in options.items()}
        separator = chosen.get("sep", chosen.get("delimiter", ","))
        plain = (
            set(chosen) <= _NEUTRAL
            and len(set(names)) == len(names)
            and len(separator) == 1
            and separator.isascii()
            and separator not in '\r\n"\\ 0123456789+-.:'
            and conf["spark.sql.columnNameOfCorruptRecord"] not in names
            and conf["spark.sql.csv.parser.columnPruning.enabled"] == "true"
            and conf["spark.sql.legacy.timeParserPolicy"] != "LEGACY"
        )
        if not plain:
            return None
        return cls(
            names,
            chosen.get("header", "false").lower() == "true",
            separator,
            chosen.get("nullvalue", ""),
            conf["spark.sql.session.timeZone"] in UTC_ZONES,
        )

    def batches(self, piece: FileSplit, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        if piece.path.lower().endswith(_PACKED) or not all(
            _is_simple(kind) for kind in wanted.types
        ):
            msg = f"{piece.path}: {wanted} cannot be read from text as Spark does"
            raise UnlikeSpark(msg)
        first = self.header and piece.start == 0
        zoned = False
        for block in blocks(piece):
            if not is_plain_text(np.frombuffer(block, dtype=np.uint8), ord(self.separator)):
                msg = f"{piece.path}: it has text that parsers read in several ways"
                raise UnlikeSpark(msg)
            try:
                body = _without_first_line(block) if first else pa.py_buffer(block)
                first = False
                table, zoned = self._parsed(body, wanted, zoned)
            except pa.ArrowInvalid as error:
                msg = f"{piece.path}: {error}"
                raise UnlikeSpark(msg) from None
            yield from table.to_batches()

    def _parsed(self, block: pa.Buffer, wanted: pa.Schema, zoned: bool) -> tuple[pa.Table, bool]:
        """Return the columns of a block, and whether its times have a zone."""
        if block.size == 0:
            return wanted.empty_table(), zoned
        try:
            return self._table(block, wanted, zoned), zoned
        except pa.ArrowInvalid:
            if not any(_is_instant(kind) for kind in wanted.types):
                raise
            return self._table(block, wanted, not zoned), not zoned

    def _table(self, block: pa.Buffer, wanted: pa.Schema, zoned: bool) -> pa.Table:
        types = {field.name: _text_type(field.type, zoned) for field in wanted}
        if not zoned and not self.utc and any(_is_instant(kind) for kind in wanted.types):
            msg = "times without a zone, in a session that is not in UTC"
            raise pa.ArrowInvalid(msg)
        table = csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(
                use_threads=False, block_size=block.size + 1, column_names=list(self.names)
            ),
            csv.ParseOptions(delimiter=self.separator, escape_char=False),
            csv.ConvertOptions(
                column_types=types,
                include_columns=wanted.names,
                null_values=["", self.null],
                strings_can_be_null=True,
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
            ),
        )
        columns = [_value(table.column(each.name), each.type) for each in wanted]
        return pa.Table.from_arrays(columns, schema=wanted)


def blocks(piece: FileSplit) -> Iterator[bytes]:
    """Yield the lines that start in a piece of a CSV file, many at a time."""
    file = os.open(piece.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at, end = _line_from(file, piece.start), _line_from(file, piece.end)
        size = BLOCK_BYTES
        while at < end:
            block = os.pread(file, min(size, end - at), at)
            cut = len(block) if at + len(block) >= end else block.rfind(b"\n") + 1
            if cut:
                yield block[:cut]
                at += cut
            elif block:
                size *= 2
            else:
                return
    finally:
        os.close(file)


def _line_from(file: int, place: int) -> int:
    """Return the start of the first line that starts at a place or after it."""
    if place == 0:
        return 0
    at = place - 1
    while block := os.pread(file, LINE_BYTES, at):
        found = block.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(block)
    return at


def _without_first_line(block: bytes) -> pa.Buffer:
    """Drop the header: the first line that is not blank."""
    at = 0
    while at < len(block):
        end = block.find(b"\n", at)
        end = len(block) if end < 0 else end + 1
        blank = not block[at:end].strip()
        at = end
        if not blank:
            break
    return pa.py_buffer(block).slice(at)


def _is_simple(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_signed_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_string(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )


def _is_instant(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _text_type(kind: pa.DataType, zoned: bool) -> pa.DataType:
    """Return the type as which a column is parsed."""
    if _is_instant(kind):
        return pa.string() if zoned else pa.timestamp("us")
    return kind


def _value(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a parsed column in its type, or refuse it where the two parsers differ."""
    if pa.types.is_floating(kind):
        if not pc.all(pc.is_finite(column), min_count=0).as_py():
            msg = "a float is not finite"
            raise pa.ArrowInvalid(msg)
    elif _is_instant(kind) and pa.types.is_string(column.type):
        _check_zones(column)
    return column.cast(kind)


def _check_zones(column: pa.ChunkedArray) -> None:
    letters: Any = pc.min(pc.binary_length(column)).as_py()
    if letters is None:
        return
    if letters < _ZONED_LETTERS or not pc.all(pc.ends_with(column, "Z")).as_py():
        msg = "times with other zones than Z"
        raise pa.ArrowInvalid(msg)
