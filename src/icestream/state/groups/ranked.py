"""Rows by rank: groups are written best rows first, and read only until enough are found.

Idea: a large group whose synopsis has a rank is written as a chain of *pieces*: the best rows in
the newest extent, worse ones behind it, each piece larger than the one before. A reader of the best
rows follows the chain until it has enough rows that nothing further back can beat: behind a sorted
piece, no row is better than the worst row of the piece.

Invariants:
1. Pieces hold the rows of the group, and no row of a piece is better than any of the piece before
   (`test_pieces_are_best_first`).
2. The best rows are among those read (`TestTheContract`), and not all rows are read
   (`test_the_best_rows_of_a_large_group_are_read_alone`).

Cost: a sort of the rows of large groups when they are written whole.

Limits: a rank is not null. A group that was written in pieces comes back in the order of rank.

References: partial state reconstruction for top-k (ICE).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Mask
from icestream.kernels.groups import extents as kernels
from icestream.kernels.rows import row_starts

#: words of the best piece, and growth factor of the following ones; the last has the rest
PIECE_WORDS = 512
PIECE_GROWTH = 4
PIECES = 4


class RowsOf(NamedTuple):
    """The rows in a run of words."""

    starts: Ints
    sizes: Ints
    #: number of the group each row belongs to
    groups: Ints


class Pieces(NamedTuple):
    """Groups cut into pieces, by group and best piece first."""

    words: Ints
    #: where each piece begins, and where the last one ends
    offsets: Ints
    #: group and place in the chain of each piece, 0 for the best
    groups: Ints
    levels: Ints
    rows: Ints
    latest: Ints


def rows_of(words: Ints, offsets: Ints) -> RowsOf:
    """Find the rows to rank of groups whose words are stored one after the other."""
    starts = np.empty(len(words), dtype=np.int64)
    starts = starts[: row_starts(words, starts)]
    groups = np.searchsorted(offsets, starts, side="right") - 1
    return RowsOf(starts, words[starts] >> 32, groups)


def ranks_of(words: Ints, starts: Ints, rank_at: int, is_float: bool) -> npt.NDArray[np.generic]:
    """Return the ranks of rows."""
    raw = words[starts + rank_at]
    return raw.view(np.float64) if is_float else raw


def cut(
    words: Ints, offsets: Ints, rank_at: int, is_float: bool, expiry_at: int, never: int
) -> Pieces:
    """Sort the rows of each ranked group by rank, best first, and cut them into pieces."""
    rows = rows_of(words, offsets)
    ranks = ranks_of(words, rows.starts, rank_at, is_float)
    # ascending by rank, then reversed: negating a rank could overflow
    order = np.lexsort((ranks, -rows.groups))[::-1]
    starts, sizes, groups = rows.starts[order], rows.sizes[order], rows.groups[order]
    sorted_words = np.empty_like(words)
    places = np.cumsum(sizes) - sizes
    kernels.copy_pieces(words, starts, sizes, sorted_words, places.copy())
    bounds = PIECE_WORDS * np.cumsum(PIECE_GROWTH ** np.arange(PIECES - 1))
    levels = np.searchsorted(bounds, places - offsets[groups], side="right")
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (groups[1:] != groups[:-1]) | (levels[1:] != levels[:-1])
    begins = np.flatnonzero(first)
    expiries = np.full(len(order), never) if expiry_at < 0 else sorted_words[places + expiry_at]
    return Pieces(
        sorted_words,
        np.append(places[begins], len(words)),
        groups[begins],
        levels[begins],
        np.diff(np.append(begins, len(order))),
        np.maximum.reduceat(expiries, begins) if len(begins) else expiries,
    )


class Best:
    """Determines, while chains are read, which groups have enough of their best rows."""

    def __init__(
        self, counts: Ints, rank_at: int, is_float: bool, expiry_at: int, watermark: int
    ) -> None:
        """Request `counts` rows of each group."""
        self._counts = counts
        self._rank_at = rank_at
        self._is_float = is_float
        self._expiry_at = expiry_at
        self._watermark = watermark
        self._groups: list[Ints] = []
        self._ranks: list[npt.NDArray[np.generic]] = []

    def add(self, names: Ints, words: Ints, offsets: Ints) -> npt.NDArray[np.generic]:
        """Add rows of these groups; return the worst rank of each group among them."""
        rows = rows_of(words, offsets)
        ranks = ranks_of(words, rows.starts, self._rank_at, self._is_float)
        worst = np.full(len(names), np.inf if self._is_float else np.iinfo(np.int64).max)
        worst = worst.astype(ranks.dtype)
        np.minimum.at(worst, rows.groups, ranks)
        if self._expiry_at >= 0:
            live = words[rows.starts + self._expiry_at] > self._watermark
            rows, ranks = RowsOf(*(each[live] for each in rows)), ranks[live]
        self._groups.append(names[rows.groups])
        self._ranks.append(ranks)
        return worst

    def enough(self, names: Ints, words: Ints, offsets: Ints, in_order: Mask) -> Mask:
        """Add the rows of a pass; return which groups need nothing further back."""
        worst = self.add(names, words, offsets)
        bounds = np.zeros(len(self._counts), dtype=worst.dtype)
        bounded = np.zeros(len(self._counts), dtype=np.bool_)
        bounds[names], bounded[names] = worst, in_order
        groups, ranks = np.concatenate(self._groups), np.concatenate(self._ranks)
        good = bounded[groups] & (ranks >= bounds[groups])
        found = np.bincount(groups[good], minlength=len(self._counts))
        return np.asarray(in_order & (found[names] >= self._counts[names]))
