"""The expected state and results of a join of several streams by one key.

Idea: streams that share a key meet in one flat operator, whose state is only the streams. A tree of
binary joins would store the same and its intermediate results. Numbers of rows and distinct keys
give the expected bytes and results, before a query runs by assumptions, and then by measurements.

Limits: keys are assumed to be uniform and, of two streams, the smaller set of keys to be part of
the larger one; a skewed stream makes more results than expected.

References: distinct counts under containment of value sets are textbook; flat joins that probe and
keep no intermediate results: Viglas, Naughton, Burger (2003).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

#: bytes of a stored row besides its payload
HEAD_BYTES = 32
#: plans whose state differs by less than this fraction store about the same
ALIKE = 0.1

#: rows and keys of each stream, if nothing was measured
ASSUMED_ROWS = 1_000_000
ASSUMED_KEYS = 100_000


class StreamStatistics(NamedTuple):
    """The expectations for one stream while its rows are stored."""

    #: rows that are stored at once: those of a window, or of the stream so far
    rows: float
    #: distinct keys among them
    keys: float
    #: bytes of the payload of a row
    row_bytes: float


def row_bytes(payload: pa.Schema) -> int:
    """Return the bytes of a row for the cost of joins: text is as long as two numbers."""
    return sum(8 if pa.types.is_primitive(each.type) else 16 for each in payload)


def state_of(streams: Sequence[StreamStatistics]) -> float:
    """Return the bytes that a join of streams is expected to store."""
    return sum(each.rows * (each.row_bytes + HEAD_BYTES) for each in streams)


def results_of(streams: Sequence[StreamStatistics]) -> float:
    """Return the expected results, for the cost of joins: rows of all, for each common key."""
    if any(each.keys == 0 for each in streams):
        return 0.0
    common = min(each.keys for each in streams)
    for each in streams:
        common *= each.rows / each.keys
    return common
