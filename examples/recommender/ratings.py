"""Files of ratings as MovieLens publishes them, as Arrow batches in the order of time.

Idea: Arrow parses a file block by block; the result is stored in four flat columns, sorted once and
returned in batches. Only on an error is the file read again, line by line, to find which line is
wrong and why.

    ratings.dat    1::122::5::838985046            user::item::rating::seconds since 1970
    ratings.csv    userId,movieId,rating,timestamp and then 1,122,5.0,838985046

Invariants:
1. Batches come in the order of time, and at equal times in that of the file
   (`test_oracle_ratings_come_in_the_order_of_time`).
2. All four file formats give the same ratings (`test_oracle_all_formats_say_the_same`).
3. Errors name file and line (`test_a_bad_line_is_named`).

Cost: 32 bytes a rating while reading, twice that while sorting.

Limits: empty lines are skipped; a time is in whole seconds and before the year 10000.

References: the README files of MovieLens 10M (`.dat`) and of MovieLens 20M and later (`.csv`).
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from icestream.core.errors import InputError

SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("user", pa.int64(), nullable=False),
        pa.field("item", pa.int64(), nullable=False),
        pa.field("rating", pa.float64(), nullable=False),
    ]
)

_HEADER = "userId,movieId,rating,timestamp"
_SECOND = 1_000_000
#: the first second of the year 10000
_TOO_LATE = 253_402_300_800
_FIELDS = {"user": pa.int64(), "item": pa.int64(), "rating": pa.float64(), "seconds": pa.int64()}
#: exceptions raised by damaged files, or files of another kind
_UNREADABLE = (OSError, EOFError, zlib.error)
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class _Format:
    """How the fields of a line are separated."""

    separator: str
    header: str | None
    #: columns as Arrow's parser sees them, which supports only separators of one character
    columns: dict[str, pa.DataType]


_FORMATS = {
    ".dat": _Format(
        "::",
        None,
        {
            name: kind
            for field, field_kind in _FIELDS.items()
            for name, kind in ((field, field_kind), (f"after_{field}", pa.null()))
            if name != "after_seconds"
        },
    ),
    ".csv": _Format(",", _HEADER, _FIELDS),
}


def read_ratings(
    path: Path, *, batch_rows: int = 1 << 16, block_bytes: int = 1 << 24
) -> Iterator[pa.RecordBatch]:
    """Read a file of ratings; yield batches of `SCHEMA` in the order of time.

    Args:
        path: a file whose name ends in `.dat`, `.csv`, `.dat.gz` or `.csv.gz`.
        batch_rows: ratings of a batch, except for the last.
        block_bytes: text parsed at once.

    Raises:
        InputError: the file is of another kind, or a line is not a rating.
    """
    form = _format_of(path)
    try:
        blocks = list(_parsed(path, form, block_bytes)) if _has_lines(path, form) else []
    except (pa.ArrowInvalid, *_UNREADABLE) as failure:
        if isinstance(failure, OSError) and failure.errno is not None:
            raise
        msg = _explanation(path, form, failure)
        raise InputError(msg) from failure
    table = pa.Table.from_batches(blocks, schema=SCHEMA)
    # a stable order: ties stay as they are in the file
    order = np.argsort(table.column("time").cast(pa.int64()).to_numpy(), kind="stable")
    for first in range(0, len(order), batch_rows):
        rows = table.take(pa.array(order[first : first + batch_rows])).combine_chunks()
        yield from rows.to_batches()


def read_table(path: Path) -> pa.Table:
    """Read a file of ratings like `read_ratings`, as one table."""
    return pa.Table.from_batches(read_ratings(path), schema=SCHEMA)


def _format_of(path: Path) -> _Format:
    """Return the format of a file by its name."""
    name = path.name.removesuffix(".gz")
    for suffix, form in _FORMATS.items():
        if name.endswith(suffix):
            return form
    msg = (
        f"{path}: cannot tell the format of ratings by this name; "
        "rename the file to end in .dat, .csv, .dat.gz or .csv.gz"
    )
    raise InputError(msg)


def _lines(path: Path) -> io.TextIOBase:
    """Open a file to be read line by line."""
    if path.name.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace")
    return path.open(encoding="utf-8-sig", errors="replace")


def _has_lines(path: Path, form: _Format) -> bool:
    """Check the header, and whether anything follows it."""
    with _lines(path) as lines:
        if form.header is not None:
            found = lines.readline().rstrip("\r\n")
            if found != form.header:
                msg = f"{path}, line 1: the header must be {form.header!r}; got {found!r}"
                raise InputError(msg)
        return any(line.strip("\r\n") for line in lines)


def _parsed(path: Path, form: _Format, block_bytes: int) -> Iterator[pa.RecordBatch]:
    """Parse a file block by block."""
    with pa.input_stream(path, compression="detect") as stream:
        blocks = pyarrow.csv.open_csv(
            stream,
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False,
                block_size=block_bytes,
                skip_rows=0 if form.header is None else 1,
                column_names=list(form.columns),
            ),
            parse_options=pyarrow.csv.ParseOptions(delimiter=form.separator[0], quote_char=False),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=form.columns, null_values=[""], strings_can_be_null=True
            ),
        )
        for block in blocks:
            yield _checked(block)


def _checked(block: pa.RecordBatch) -> pa.RecordBatch:
    """Turn a parsed block into ratings; raise if a value is missing or impossible."""
    columns: dict[str, Any] = {name: block.column(name) for name in _FIELDS}
    seconds = columns["seconds"].to_numpy(zero_copy_only=False)
    sound = (
        all(column.null_count == 0 for column in columns.values())
        and pc.all(pc.is_finite(columns["rating"]), min_count=0).as_py()
        and bool(np.all((seconds >= 0) & (seconds < _TOO_LATE)))
    )
    if not sound:
        msg = "a value is missing or out of range"
        raise pa.ArrowInvalid(msg)
    times = pa.array(seconds * _SECOND, SCHEMA.field("time").type)
    arrays = [times, columns["user"], columns["item"], columns["rating"]]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _explanation(path: Path, form: _Format, failure: Exception) -> str:
    """Find the first line that is not a rating, and describe what is wrong with it."""
    try:
        with _lines(path) as lines:
            for number, line in enumerate(lines, 1):
                text = line.rstrip("\r\n")
                wrong = _wrong(text, form) if text and (number > 1 or not form.header) else None
                if wrong:
                    return f"{path}, line {number}: {wrong}; got {text!r}"
    except _UNREADABLE as unreadable:
        return f"{path}: the file is cut off or damaged ({unreadable}); fetch it again"
    return f"{path}: cannot be read as ratings: {failure}"


def _wrong(line: str, form: _Format) -> str | None:
    """Return why a line is not a rating, if it is not."""
    fields = [field.strip(" \t") for field in line.split(form.separator)]
    if len(fields) != len(_FIELDS):
        shape = form.separator.join(("user", "item", "rating", "seconds"))
        return f"expected 4 fields, as {shape}"
    for name, text in zip(_FIELDS, fields, strict=True):
        if name == "rating":
            if not _NUMBER.fullmatch(text) or not np.isfinite(float(text)):
                return f"rating {text!r} is not a number"
        elif not _WHOLE.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
            return f"{name} {text!r} is not a whole number of 64 bits"
    if not 0 <= int(fields[3]) < _TOO_LATE:
        return f"time {fields[3]} is not in seconds since 1970, before the year 10000"
    return None
