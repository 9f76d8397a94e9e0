"""Groups written to the log: which words, chained to what, and what the directory then knows.

Idea: a group is written whole, or only what is new with a pointer to what was written before. All
groups of a call go out together, sorted. A large group with a rank is written in pieces, the worst
rows first, so that its root has the best.

Invariants:
1. Behind a root are the rows of the group up to the words that are clean
   (`TestTheContract`).
2. An extent that replaces others expires no earlier than they do: a restore never shows what was
   replaced
   (`test_crash_a_shorter_rewrite_does_not_bring_old_rows_back`).

Cost: one gather, one pass over the rows and one copy.

References: delta updates (ICE).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.kernels import heap as k
from icestream.kernels.extents import HEADER
from icestream.state.synopses import ranked
from icestream.state.synopses.directory import part
from icestream.state.synopses.extents import ExtentLog, Extents, picked
from icestream.state.synopses.facts import Fact
from icestream.state.synopses.memory import Gathered, Memory
from icestream.state.synopses.spec import Ids, Ints, Slots

Mask = npt.NDArray[np.bool_]


@dataclass
class Drafts:
    """What is to be written of groups, sorted by identity."""

    synopsis: int
    hi: Ids
    lo: Ids
    live: Gathered
    #: the extent before, its latest expiry, and the ordinal of the oldest one; 0 for the new one's
    back: Ints
    back_expiry: Ints
    oldest: Ints
    expiry: Ints
    chain: Ints
    in_order: Mask

    def extents(self, at: Ints) -> Extents:
        """Return the extents of some groups; the others have no words."""
        return Extents(
            self.hi[at],
            self.lo[at],
            self.live.rows[at],
            self.live.words,
            np.append(self.live.offsets[:-1][at], self.live.offsets[-1]),
            self.back[at],
            self.back_expiry[at],
            self.expiry[at],
            self.chain[at],
            self.in_order[at],
        )


@dataclass
class ExtentWriter:
    """Writes groups of one store."""

    memory: Memory
    log: ExtentLog
    durability: str
    #: word of a row with its rank, by synopsis, and whether that is a float; -1 for none
    rank_at: Sequence[tuple[int, bool]]

    def write(
        self, synopsis: int, slots: Slots, whole: Mask, kind: Fact, *, mirrored: bool
    ) -> None:
        """Write all words of some groups, the news of others, and move their roots."""
        if not len(slots):
            return
        order = np.lexsort(self.memory.identities(slots)[::-1])
        slots, whole = slots[order], whole[order]
        root = self.memory.column(synopsis, k.ROOT, slots)
        stale = self.memory.has(synopsis, k.STALE, slots)
        drafts, follows, written = self._draft(synopsis, slots, whole, root, stale)
        sizes = np.diff(drafts.live.offsets)
        again = whole & ~stale & (root != k.NO_ROOT)
        large = whole & (sizes > ranked.PIECE_WORDS)
        if self.rank_at[synopsis][0] >= 0 and large.any():
            self._write_worse(drafts, np.flatnonzero(large), again, kind, mirrored)
        self.forget(synopsis, slots[~written & whole])
        at, table = part(synopsis), self.memory.directory.table
        table[slots, at + k.CLEAN] = table[slots, at + k.WORDS]
        table[slots, at + k.FLAGS] &= ~k.STALE
        some = np.flatnonzero(written)
        if not len(some):
            return
        markers = self._append(synopsis, drafts.extents(some), again[some], kind, mirrored)
        slots, oldest = slots[some], drafts.oldest[some]
        cold = np.where(follows[some], table[slots, at + k.COLD], 0) + sizes[some]
        table[slots, at + k.ROOT] = markers
        table[slots, at + k.ROOT_EXPIRY] = drafts.expiry[some]
        table[slots, at + k.CHAIN] = np.where(oldest > 0, oldest, markers >> 32) << 32
        table[slots, at + k.CHAIN] |= drafts.chain[some]
        table[slots, at + k.COLD] = cold

    def forget(self, synopsis: int, slots: Slots) -> None:
        """Nothing of these groups is on the log any more."""
        table, at = self.memory.directory.table, part(synopsis)
        table[slots, at + k.ROOT] = k.NO_ROOT
        table[slots, at + k.ROOT_EXPIRY] = MINUS_INFINITY
        table[slots, at + k.COLD] = 0
        table[slots, at + k.CHAIN] = 0
        table[slots, at + k.FLAGS] |= k.WHOLE

    def _draft(
        self, synopsis: int, slots: Slots, whole: Mask, root: Ints, stale: Mask
    ) -> tuple[Drafts, Mask, Mask]:
        """Return what is to be written, what follows on what was, and what is not nothing."""
        clean, chain, root_expiry = (
            self.memory.column(synopsis, c, slots) for c in (k.CLEAN, k.CHAIN, k.ROOT_EXPIRY)
        )
        live = self.memory.gather(synopsis, slots, np.where(whole, 0, clean))
        lives = (root != k.NO_ROOT) & (root_expiry > self.memory.watermark)
        follows = ~whole & lives
        hides = stale & lives
        if self.durability == "evict":
            hides[:] = False
        before = np.where(follows | hides, root_expiry, MINUS_INFINITY)
        drafts = Drafts(
            synopsis,
            *self.memory.identities(slots),
            live,
            np.where(follows, root, k.NO_ROOT),
            np.where(follows, root_expiry, MINUS_INFINITY),
            np.where(follows, chain >> 32, 0),
            np.maximum(live.latest, before),
            np.where(follows, chain & 0xFFFFFFFF, 0) + 1,
            np.zeros(len(slots), dtype=np.bool_),
        )
        return drafts, follows, (np.diff(live.offsets) > 0) | hides

    def _write_worse(
        self, drafts: Drafts, large: Ints, again: Mask, kind: Fact, mirrored: bool
    ) -> None:
        """Write all but the best rows of large groups, and leave those for their roots."""
        live, expiry_at = drafts.live, self.memory.expiry_at[drafts.synopsis]
        words, offsets = picked(live.words, live.offsets[large], np.diff(live.offsets)[large])
        pieces = ranked.cut(words, offsets, *self.rank_at[drafts.synopsis], expiry_at, INFINITY)
        sizes = np.diff(pieces.offsets)
        for level in reversed(range(1, ranked.PIECES)):
            of_level = np.flatnonzero(pieces.levels == level)
            if not len(of_level):
                continue
            groups = large[pieces.groups[of_level]]
            expiry = np.maximum(pieces.latest[of_level], drafts.back_expiry[groups])
            part_words, part_offsets = picked(
                pieces.words, pieces.offsets[of_level], sizes[of_level]
            )
            extents = Extents(
                drafts.hi[groups],
                drafts.lo[groups],
                pieces.rows[of_level],
                part_words,
                part_offsets,
                drafts.back[groups],
                drafts.back_expiry[groups],
                expiry,
                drafts.chain[groups],
                np.ones(len(groups), dtype=np.bool_),
            )
            markers = self._append(drafts.synopsis, extents, again[groups], kind, mirrored)
            new = drafts.back[groups] == k.NO_ROOT
            drafts.oldest[groups[new]] = markers[new] >> 32
            drafts.back[groups], drafts.back_expiry[groups] = markers, expiry
        best = np.flatnonzero(pieces.levels == 0)
        drafts.in_order[large] = True
        drafts.live = _with_best(live, large, pieces, best)

    def _append(
        self, synopsis: int, extents: Extents, again: Mask, kind: Fact, mirrored: bool
    ) -> Ints:
        """Write extents and count their bytes; those written again are consolidated."""
        facts, before = self.memory.facts, self.log.traffic.bytes
        sequence = facts.next(Fact.SEQUENCE)
        markers = self.log.write(synopsis, extents, sequence, mirrored=mirrored)
        facts[Fact.EXTENTS] += len(markers)
        total = self.log.traffic.bytes - before
        sizes = np.diff(extents.offsets) + HEADER
        consolidated = int(sizes[again].sum()) * 8 if kind == Fact.LOGGED else 0
        facts[Fact.CONSOLIDATED] += consolidated
        facts[kind] += total - consolidated
        return markers


def _with_best(live: Gathered, large: Ints, pieces: ranked.Pieces, best: Ints) -> Gathered:
    """Return the words of groups, of large ones only the best piece."""
    begins, sizes, rows = live.offsets[:-1].copy(), np.diff(live.offsets), live.rows.copy()
    begins[large] = len(live.words) + pieces.offsets[best]
    sizes[large] = np.diff(pieces.offsets)[best]
    rows[large] = pieces.rows[best]
    words, offsets = picked(np.concatenate((live.words, pieces.words)), begins, sizes)
    return Gathered(words, offsets, rows, live.cleans, live.latest)
