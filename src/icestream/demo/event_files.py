"""Writes Parquet files of a stream, each complete when it appears, in the order of event time.

Idea: a file is written under `_writing`, which readers of the folder skip, and then renamed
atomically. Spark reads files in the order of their modification times, in milliseconds; these are
made distinct.

Invariants:
1. Modification times follow the order of files (`test_spark_takes_the_files_in_their_order`).
2. A file is written when it is requested, not before (`test_a_file_is_written_when_asked_for`).

Limits: if listing the folder takes longer than writing two files, a listing may show the second
without the first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from icestream.core.times import Micros


@dataclass(frozen=True, slots=True)
class EventFile:
    """A finished file of a stream."""

    path: Path
    events: int
    #: event time up to which the stream is complete, except for disorder
    until: Micros


def write_files(
    folder: Path, pieces: Iterable[tuple[pa.Table, Micros]], dictionary: Sequence[str]
) -> Iterator[EventFile]:
    """Write each piece of events, given with the event time it reaches, to its own file.

    The columns in `dictionary` have few values.
    """
    hidden = folder / "_writing"
    hidden.mkdir(parents=True, exist_ok=True)
    modified = 0
    for ordinal, (events, until) in enumerate(pieces):
        name = f"{ordinal:06d}.parquet"
        pq.write_table(
            events,
            hidden / name,
            compression="lz4",
            use_dictionary=list(dictionary),
            write_statistics=False,
        )
        modified = max(time.time_ns(), modified + 1_000_000)
        os.utime(hidden / name, ns=(modified, modified))
        (hidden / name).rename(folder / name)
        yield EventFile(folder / name, events.num_rows, until)
