"""The few numbers that a store keeps, in its arena."""

from __future__ import annotations

from enum import IntEnum, auto

import numpy as np

from icestream.core.times import MINUS_INFINITY
from icestream.state.arena import Arena


class Fact(IntEnum):
    """Names of the numbers."""

    #: whether the others are set
    STARTED = 0
    #: number of the chunk, and of the call that pins groups
    CHUNK = auto()
    CALL = auto()
    WATERMARK = auto()
    #: number of the next write to the log
    SEQUENCE = auto()
    #: whether a version ended since the last sweep of groups without rows
    SWEEP = auto()
    #: accesses since access counts were last halved, and how often they were halved
    NAMED = auto()
    HALVED = auto()
    #: live bytes when last counted, and the bytes in memory and on the log at that time
    LIVE = auto()
    COUNTED = auto()
    #: bytes written: new rows of a version, evictions, consolidated chains
    LOGGED = auto()
    EVICTED = auto()
    CONSOLIDATED = auto()
    EXTENTS = auto()
    #: groups evicted and groups read back, by synopsis
    LEFT = auto()
    RETURNED = auto()
    EXTENTS_READ = auto()
    BYTES_READ = auto()
    #: groups moved to the cold index and back
    DEMOTED = auto()
    PROMOTED = auto()


class Facts:
    """Numbers by name."""

    def __init__(self, arena: Arena, name: str) -> None:
        self._array = arena.array(f"{name}.facts", np.int64, 1, len(Fact))
        if not self[Fact.STARTED]:
            self[Fact.STARTED] = 1
            self[Fact.CHUNK] = 1
            self[Fact.CALL] = 1
            self[Fact.WATERMARK] = MINUS_INFINITY

    def __getitem__(self, fact: Fact) -> int:
        return int(self._array.view[fact])

    def __setitem__(self, fact: Fact, value: int) -> None:
        self._array.view[fact] = value

    def next(self, fact: Fact) -> int:
        self[fact] += 1
        return self[fact]
