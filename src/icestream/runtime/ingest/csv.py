"""CSV files that tasks and Spark read alike.

Idea: a kernel finds the values of the columns that are needed, and converts integers and times in
their usual form; pyarrow converts the rest. Values that it accepts mean the same to Spark, except
for a few forms, which are detected: quotes inside values, quoted line ends, escapes, blanks around
values, hexadecimal numbers, floats that are not finite, time zones in the middle of a time. Spark
reads files that contain one or that pyarrow refuses.

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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Ints
from icestream.core.times import UTC_ZONES
from icestream.kernels.delimited_text import (
    NEWLINE,
    Bytes,
    collect_text,
    find_values,
    read_integers,
    read_times,
)
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
#: what is true, then what is false
_BOOLEANS = pa.array(["true", "True", "TRUE", "false", "False", "FALSE"])
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
            and separator not in '\r\n"\\ 0123456789+-.:xX'
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
        header = 1 if self.header and piece.start == 0 else 0
        for block in blocks(piece):
            try:
                yield self._parsed(np.frombuffer(block, dtype=np.uint8), wanted, header)
            except pa.ArrowInvalid as error:
                msg = f"{piece.path}: {error}"
                raise UnlikeSpark(msg) from None
            header = 0

    def _parsed(self, text: Bytes, wanted: pa.Schema, first: int) -> pa.RecordBatch:
        """Return the columns of a block of whole lines, from the line `first` on."""
        null = np.frombuffer(self.null.encode(), dtype=np.uint8)
        slots = {name: slot for slot, name in enumerate(wanted.names)}
        slot_of = np.array([slots.get(name, -1) for name in self.names], dtype=np.int64)
        # as many as there may be: much of a larger table would be cleared for a few values
        most = np.count_nonzero(text == NEWLINE) + 1
        starts, sizes = np.empty((2, len(wanted), most), dtype=np.int64)
        separator = ord(self.separator)
        lines, ascii_only = find_values(text, separator, null, slot_of, starts, sizes)
        if lines < 0:
            msg = "it has text that parsers read in several ways"
            raise pa.ArrowInvalid(msg)
        arrays = [
            self._column(TextColumn(text, start, size, ascii_only), field.type)
            for start, size, field in zip(
                starts[:, first:lines], sizes[:, first:lines], wanted, strict=True
            )
        ]
        # unlike a batch, a struct without columns has rows
        rows, kind = max(lines - first, 0), pa.struct(list(wanted))
        found = pa.StructArray.from_buffers(kind, rows, [None], children=arrays)
        return pa.RecordBatch.from_struct_array(found)

    def _column(self, column: TextColumn, kind: pa.DataType) -> pa.Array:
        """Return a column in its type, or refuse it where the two parsers differ."""
        if pa.types.is_signed_integer(kind):
            return column.integers().cast(kind)
        if pa.types.is_timestamp(kind):
            return column.times(kind, utc=self.utc)
        found = column.texts()
        if pa.types.is_boolean(kind):
            place = pc.index_in(found, _BOOLEANS)
            if place.null_count > found.null_count:
                msg = "a boolean is neither true nor false"
                raise pa.ArrowInvalid(msg)
            return pc.less(place, len(_BOOLEANS) // 2)
        found = found.cast(kind)
        if pa.types.is_floating(kind) and not pc.all(pc.is_finite(found), min_count=0).as_py():
            msg = "a float is not finite"
            raise pa.ArrowInvalid(msg)
        return found


@dataclass(frozen=True)
class TextColumn:
    """Where the values of a column are in a block of text."""

    text: Bytes
    starts: Ints
    #: bytes; zero for null
    sizes: Ints
    ascii_only: bool

    def texts(self) -> pa.Array:
        offsets = np.empty(len(self.starts) + 1, dtype=np.int32)
        data = np.empty(int(self.sizes.sum()), dtype=np.uint8)
        collect_text(self.text, self.starts, self.sizes, offsets, data)
        buffers = [pa.py_buffer(offsets), pa.py_buffer(data)]
        found = pa.Array.from_buffers(pa.string(), len(self.starts), [self._valid(), *buffers])
        if not self.ascii_only:
            found.validate(full=True)
        return found

    def integers(self) -> pa.Array:
        values = np.empty(len(self.starts), dtype=np.int64)
        usual = read_integers(self.text, self.starts, self.sizes, values)
        return self._words(values, pa.int64()) if usual else self.texts().cast(pa.int64())

    def times(self, kind: pa.DataType, *, utc: bool) -> pa.Array:
        """Return times without a zone, in a session in UTC if they are instants, or all with Z."""
        values = np.empty(len(self.starts), dtype=np.int64)
        zoned = read_times(self.text, self.starts, self.sizes, values)
        if zoned >= 0 and zoned == (0 if utc or kind.tz is None else np.count_nonzero(self.sizes)):
            return self._words(values, kind)
        found = self.texts()
        if kind.tz is not None and pc.all(pc.ends_with(found, "Z"), min_count=0).as_py():
            if (pc.min(pc.binary_length(found)).as_py() or _ZONED_LETTERS) < _ZONED_LETTERS:
                msg = "times with other zones than Z"
                raise pa.ArrowInvalid(msg)
            return found.cast(kind)
        if kind.tz is not None and not utc:
            msg = "times without a zone, in a session that is not in UTC"
            raise pa.ArrowInvalid(msg)
        return found.cast(pa.timestamp("us")).cast(kind)

    def _words(self, values: Ints, kind: pa.DataType) -> pa.Array:
        return pa.Array.from_buffers(kind, len(values), [self._valid(), pa.py_buffer(values)])

    def _valid(self) -> pa.Buffer | None:
        """Return which values are not null; None if all are."""
        valid = self.sizes > 0
        return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def blocks(piece: FileSplit) -> Iterator[memoryview]:
    """Yield the lines that start in a piece of a CSV file, many at a time."""
    file = os.open(piece.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        at, end = _line_from(file, piece.start), _line_from(file, piece.end)
        size = BLOCK_BYTES
        while at < end:
            block = np.empty(min(size, end - at), dtype=np.uint8).data
            block = block[: os.preadv(file, [block], at)]
            cut = len(block) if at + len(block) >= end else _whole_lines(block)
            if cut:
                yield block[:cut]
                at += cut
            elif block:
                size *= 2
            else:
                return
    finally:
        os.close(file)


def _whole_lines(block: memoryview) -> int:
    """Return the bytes of a block up to its last line end."""
    for end in range(len(block), 0, -LINE_BYTES):
        start = max(end - LINE_BYTES, 0)
        found = bytes(block[start:end]).rfind(b"\n")
        if found >= 0:
            return start + found + 1
    return 0


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


def _is_simple(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_signed_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_string(kind)
        or (pa.types.is_timestamp(kind) and kind.unit == "us")
    )
