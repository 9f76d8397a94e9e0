"""How a store keeps its groups, and what it needs from its surroundings.

Idea: the papers' optimisations are switches, so that each can be measured without the others. What
a store receives (arena, log, segments to write to) and what frees memory for it are protocols: a
shard of the runtime implements them, and so does a folder in a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from icestream.core.errors import DefinitionError
from icestream.state.arena import Arena
from icestream.state.budget import Account
from icestream.state.identities import IdRange
from icestream.state.log.format import SegmentInfo
from icestream.state.log.reader import Log, SegmentReader
from icestream.state.log.writer import SegmentWriter

#: lifetime class of extents that expire; all stores of a shard share it
ROWS = "rows"

Durability = Literal["log", "evict"]


def forever(scope: int) -> str:
    """Return the option for a store's extents that never expire: their lifetime class."""
    return f"forever-{scope}"


def lifetimes(scopes: int) -> tuple[str, ...]:
    """Return the lifetime classes, by the options of `scopes` stores, without that of snapshots."""
    return (ROWS, *map(forever, range(scopes)))


@dataclass(frozen=True)
class StoreOptions:
    """What a store of groups writes and reads, and when."""

    #: `log`: every version writes its new rows; `evict`: only evicted groups are written
    durability: Durability = "log"
    #: write the rows since the last extent and a pointer to it, not the whole group
    deltas: bool = True
    #: a group without new rows is evicted without being written
    clean_is_free: bool = True
    #: a cold group returns to memory on its second read, not on the first
    second_ask: bool = True
    #: maximum extents of a group on the log; more are merged into one
    chain_limit: int = 128
    #: 64-bit words of a block of memory
    block_words: int = 8
    #: approximate bytes of a record of extents
    record_bytes: int = 262144
    #: bytes of a page of the cold index
    page_bytes: int = 8192
    #: groups of at most this many 64-bit words are stored inline when they leave the directory
    carried_words: int = 16

    def __post_init__(self) -> None:
        """Raise DefinitionError for invalid options."""
        if self.durability not in ("log", "evict"):
            msg = f"durability must be 'log' or 'evict'; got {self.durability!r}"
            raise DefinitionError(msg)
        least = {"chain_limit": 1, "block_words": 1, "record_bytes": 64}
        least["carried_words"] = 0
        for name, value in least.items():
            if getattr(self, name) < value:
                msg = f"{name} must be at least {value}; got {getattr(self, name)}"
                raise DefinitionError(msg)


class StoreSpace(Protocol):
    """The part of a shard that a store uses."""

    arena: Arena
    #: account of the shard's work buffers; the arena has its own account
    account: Account
    log: Log

    def segment(self, lifetime: str) -> SegmentWriter:
        """Return the open segment of a lifetime class in this version, created on first use."""
        ...

    def reader(self, info: SegmentInfo) -> SegmentReader:
        """Open a segment of the log by its commit's description."""
        ...


class Past(Protocol):
    """A committed version of a shard."""

    @property
    def version(self) -> int:
        """Return its number."""
        ...

    @property
    def watermark(self) -> int:
        """Return its watermark."""
        ...

    @property
    def segments(self) -> Sequence[tuple[str, SegmentInfo]]:
        """Return the segments it wrote, with their lifetime classes."""
        ...

    @property
    def keeps(self) -> IdRange | None:
        """Return the ids that a shard has of those of its parents; None for all."""
        ...

    @property
    def parents(self) -> Sequence[IdRange]:
        """Return the part of these that each parent had; empty if it wrote the version itself."""
        ...


class Pressure(Protocol):
    """Evicts groups when there is no room."""

    def free(self, size: int) -> int:
        """Evict groups until about `size` bytes are free; return the bytes freed."""
        ...

    def take_back(self) -> None:
        """Give the heap all memory that directories do not use, as a last resort."""
        ...
