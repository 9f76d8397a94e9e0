"""The log: immutable segment files of checksummed records, found again by 8-byte markers.

`format` defines the bytes, `writer` makes a segment, `reader` reads segments and follows chains of
records, `compact` rewrites chains that never expire. `docs/formats/log.md` shows the format.
"""

from __future__ import annotations

from icestream.state.log.compact import compact
from icestream.state.log.format import NO_MARKER, Record, SegmentInfo
from icestream.state.log.reader import Log, SegmentReader
from icestream.state.log.writer import SegmentWriter

__all__ = [
    "NO_MARKER",
    "Log",
    "Record",
    "SegmentInfo",
    "SegmentReader",
    "SegmentWriter",
    "compact",
]
