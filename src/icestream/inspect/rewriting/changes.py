"""The interface of a rewrite of a shard: rows in, segments and counts out.

Invariant: rows that were not edited change nothing
(`test_rows_that_nobody_edited_make_no_version`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Table
from icestream.inspect.access.edited_rows import EditedRows
from icestream.inspect.access.scratch_shard import ScratchShard


@dataclass(frozen=True)
class ShardRewrite:
    """The changes of one shard; its segments are in the shard's `sealed`."""

    #: number of groups whose rows changed, and of their rows
    groups: int
    rows: int
    #: whether the version can be restored without those before it
    snapshot: bool = False
    #: ordinals of segments that are no longer needed
    released: tuple[int, ...] = ()
    #: whether keys may wait now that did not wait before
    waits: bool = False


class Rewriter(ABC):
    """Writes the edited rows of one table."""

    #: whether shards are written whole, also where nothing differs
    whole = False

    def __init__(self, given: EditedRows, *, keep: bool) -> None:
        """Write the given rows; groups without a row are kept or dropped."""
        self._given = given
        self._keep = keep

    def concerns(self, shard: int) -> bool:
        """Return whether anything may change in a shard."""
        return not self._keep or self._given.has(shard)

    @abstractmethod
    def change(self, source: ScratchShard) -> ShardRewrite | None:
        """Write the differences of a shard; None, with nothing written, if there are none."""


def differing(one: Ints, begins: Ints, two: Ints, others: Ints) -> npt.NDArray[np.bool_]:
    """Return which runs of words a rewrite changes, given the start of each and the last end."""
    sizes = np.diff(begins)
    differ: npt.NDArray[np.bool_] = sizes != np.diff(others)
    lengths = np.where(differ, 0, sizes)
    owner = np.repeat(np.arange(len(sizes)), lengths)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    unequal = one[begins[owner] + within] != two[others[owner] + within]
    differ[owner[unequal]] = True
    return differ


def places_of(rows: Table, among: Table) -> Ints:
    """Return the position of each changed row among others, which are unique; -1 if missing."""
    _, numbers = np.unique(np.concatenate([among, rows]), axis=0, return_inverse=True)
    place = np.full(len(numbers), -1, dtype=np.int64)
    place[numbers[: len(among)]] = np.arange(len(among))
    return place[numbers[len(among) :]]


def alone(one: Table, other: Table) -> Table:
    """Return the rows that a rewrite changes: those in one of two tables only, each unique."""
    rows, counts = np.unique(np.concatenate([one, other]), axis=0, return_counts=True)
    found: Table = rows[counts == 1]
    return found
