"""What rewriting a shard is: rows in, segments and counts out.

Invariant: rows that nobody edited make no change (`test_rows_that_nobody_edited_make_no_version`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Table
from icestream.inspect.access.edited_rows import EditedRows
from icestream.inspect.access.scratch_shard import ScratchShard
from icestream.operators.protocol import PastVersion


@dataclass(frozen=True)
class ShardRewrite:
    """What was changed in one shard; what was written is in the shard's `sealed`."""

    #: groups whose rows differ now, and the rows that they have
    groups: int
    rows: int
    #: whether the version stands without those before it
    snapshot: bool = False
    #: ordinals of segments that nothing needs any more
    released: tuple[int, ...] = ()
    #: whether something waits now that may not have waited before
    waits: bool = False


class Rewriter(ABC):
    """Writes the edited rows of one table."""

    def __init__(self, given: EditedRows, *, keep: bool) -> None:
        """Write the given rows; groups that they do not name are kept, or dropped."""
        self._given = given
        self._keep = keep

    def concerns(self, shard: int) -> bool:
        """Tell whether something may change in a shard."""
        return not self._keep or self._given.has(shard)

    @abstractmethod
    def change(
        self, shard: int, space: ScratchShard, history: Sequence[PastVersion]
    ) -> ShardRewrite | None:
        """Write what differs in a shard; None, and nothing written, if nothing does."""


def differing(one: Ints, begins: Ints, two: Ints, others: Ints) -> npt.NDArray[np.bool_]:
    """Tell which stretches of words are not the same, given where each begins and the last ends."""
    sizes = np.diff(begins)
    differ: npt.NDArray[np.bool_] = sizes != np.diff(others)
    lengths = np.where(differ, 0, sizes)
    owner = np.repeat(np.arange(len(sizes)), lengths)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    unequal = one[begins[owner] + within] != two[others[owner] + within]
    differ[owner[unequal]] = True
    return differ


def places_of(rows: Table, among: Table) -> Ints:
    """Return where each row is among others, each of which is there once; -1 for nowhere."""
    _, numbers = np.unique(np.concatenate([among, rows]), axis=0, return_inverse=True)
    place = np.full(len(numbers), -1, dtype=np.int64)
    place[numbers[: len(among)]] = np.arange(len(among))
    return place[numbers[len(among) :]]


def alone(one: Table, other: Table) -> Table:
    """Return the rows that are in one of two tables and not in the other; in each there once."""
    rows, counts = np.unique(np.concatenate([one, other]), axis=0, return_counts=True)
    found: Table = rows[counts == 1]
    return found
