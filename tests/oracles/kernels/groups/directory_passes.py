"""The obvious versions of the kernels in `icestream.kernels.groups.directory_passes`."""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Mask, Table
from icestream.kernels.groups.directory_passes import _LEAST, _MOST, USED_SLOTS
from icestream.kernels.groups.extents import (
    BACK,
    BACK_LATEST,
    HEADER,
    LATEST,
    LENGTH,
    SHAPE,
)
from icestream.kernels.groups.heap import (
    CHAIN,
    CLEAN,
    COLD,
    DUE,
    EXPIRY,
    FLAGS,
    GROUP,
    HEAT,
    ID_HIGH,
    ID_LOW,
    MARK,
    NO_ROOT,
    PAGED,
    PARTS,
    PIN,
    PLAIN_FLAGS,
    REMINDED,
    ROOT,
    ROOT_EXPIRY,
    STALE,
    STAMP,
    TAIL,
    WHOLE,
    WORDS,
)


def list_news_reference(table: Table, at: int, before: int) -> list[int]:
    """Return what `list_news` lists, by columns."""
    news = table[:, at + WORDS] > table[:, at + CLEAN]
    news |= table[:, at + FLAGS] & STALE != 0
    return np.flatnonzero(news & (table[:, STAMP] > 0) & (table[:, STAMP] < before)).tolist()


def list_over_reference(table: Table, at: int, watermark: int) -> list[int]:
    """Return what `list_over` lists, by columns."""
    something = (table[:, at + WORDS] > 0) | (table[:, at + ROOT] != NO_ROOT)
    over = something & (table[:, at + EXPIRY] <= watermark)
    return np.flatnonzero(over & (table[:, STAMP] != 0)).tolist()


def list_held_reference(table: Table, pin: int, before: int) -> list[int]:
    """Return what `list_held` lists, by columns."""
    held = (table[:, GROUP + WORDS :: PARTS] > 0).any(axis=1) & (table[:, PIN] != pin)
    return np.flatnonzero(held & (table[:, STAMP] != 0) & (table[:, STAMP] < before)).tolist()


def list_residue_reference(table: Table, at: int, before: int) -> list[int]:
    """Return what `list_residue` lists, by columns."""
    there = (table[:, STAMP] > 0) & (table[:, STAMP] < before)
    there &= (table[:, at + WORDS] > 0) & (table[:, at + FLAGS] & WHOLE == 0)
    return np.flatnonzero(there).tolist()


def is_empty_reference(table: Table) -> Mask:
    """Return what `is_empty` returns for all groups, by columns."""
    words, cold, due, flags = (table[:, GROUP + c :: PARTS] for c in (WORDS, COLD, DUE, FLAGS))
    idle = (words == 0) & (cold == 0) & (due == _MOST) & (flags & (STALE | REMINDED) == 0)
    return np.asarray(idle.all(axis=1))


def list_gone_reference(table: Table) -> list[int]:
    """Return what `list_gone` lists, by columns."""
    there = (table[:, STAMP] != 0) & (table[:, PAGED] == 0)
    return np.flatnonzero(there & is_empty_reference(table)).tolist()


def list_needed_reference(table: Table, slots: Ints) -> list[int]:
    """Return what `list_needed` lists, by columns."""
    needed = (table[:, PAGED] != 0) | ~is_empty_reference(table)
    return np.flatnonzero(needed[slots]).tolist()


def words_of_reference(table: Table, parts: Ints, slots: Ints, with_cold: bool, block: int) -> Ints:
    """Return what `words_of` fills in, by columns."""
    words, flags, cold = (table[slots[:, None], parts + c] for c in (WORDS, FLAGS, COLD))
    behind = np.where(flags & WHOLE == 0, cold, 0) if with_cold else 0
    return np.asarray((-(-words // block) * block + behind).sum(axis=1))


def known_words_reference(table: Table, block: int) -> int:
    """Return what `known_words` does, by columns."""
    there = table[table[:, STAMP] != 0]
    cold, held, clean = (there[:, GROUP + c :: PARTS] for c in (COLD, WORDS, CLEAN))
    return int((-(-(cold + held - clean) // block) * block).sum())


def measure_reference(
    table: Table, at: int, slots: Ints, whole: Mask
) -> tuple[Ints, Ints, Ints, int]:
    """Return what `measure` fills in and returns, by columns."""
    clean = table[slots, at + CLEAN]
    skipped = np.where(whole, 0, clean)
    sizes = table[slots, at + WORDS] - skipped
    cold = int((table[slots, at + FLAGS] & WHOLE == 0).sum())
    return skipped, np.concatenate(([0], np.cumsum(sizes))), clean - skipped, cold


def describe_reference(
    table: Table,
    at: int,
    slots: Ints,
    whole: Mask,
    offsets: Ints,
    rows: Ints,
    latest: Ints,
    watermark: int,
    is_logged: bool,
) -> tuple[Table, Ints, Mask, list[int]]:
    """Return headers, oldest, again and written of `describe`, by columns."""
    root, expiry, chain = (table[slots, at + c] for c in (ROOT, ROOT_EXPIRY, CHAIN))
    stale = table[slots, at + FLAGS] & STALE != 0
    lives = (root != NO_ROOT) & (expiry > watermark)
    follows, hides = lives & ~whole, lives & stale & is_logged
    headers = np.empty((len(slots), HEADER), dtype=np.int64)
    headers[:, :2] = table[slots][:, [ID_HIGH, ID_LOW]]
    headers[:, SHAPE] = (np.where(follows, chain & 0xFFFFFFFF, 0) + 1) << 32 | rows
    headers[:, LENGTH] = np.diff(offsets)
    headers[:, BACK] = np.where(follows, root, NO_ROOT)
    headers[:, BACK_LATEST] = np.where(follows, expiry, _LEAST)
    headers[:, LATEST] = np.maximum(latest, np.where(follows | hides, expiry, _LEAST))
    written = np.flatnonzero((np.diff(offsets) > 0) | hides).tolist()
    again = whole & ~stale & (root != NO_ROOT)
    return headers, np.where(follows, chain >> 32, 0), again, written


def settle_reference(
    table: Table,
    at: int,
    slots: Ints,
    whole: Mask,
    headers: Table,
    sizes: Ints,
    oldest: Ints,
    markers: Ints,
) -> None:
    """Do what `settle` does, by columns."""
    table[slots, at + CLEAN] = table[slots, at + WORDS]
    table[slots, at + MARK] = table[slots, at + TAIL]
    table[slots, at + FLAGS] &= ~STALE
    lengths = headers[:, SHAPE] >> 32
    is_gone = np.where(markers == NO_ROOT, whole, (lengths == 1) & (sizes == 0))
    gone = slots[is_gone]
    table[gone, at + ROOT], table[gone, at + ROOT_EXPIRY] = NO_ROOT, _LEAST
    table[gone, at + COLD] = table[gone, at + CHAIN] = 0
    table[gone, at + FLAGS] = table[gone, at + FLAGS] & PLAIN_FLAGS | WHOLE
    there = (markers != NO_ROOT) & ~is_gone
    slots, length, first = slots[there], lengths[there], oldest[there]
    markers = markers[there]
    table[slots, at + COLD] = sizes[there] + np.where(length > 1, table[slots, at + COLD], 0)
    table[slots, at + ROOT] = markers
    table[slots, at + ROOT_EXPIRY] = headers[there, LATEST]
    table[slots, at + CHAIN] = np.where(first > 0, first, markers >> 32) << 32 | length


def compact_slots_reference(table: Table) -> Table:
    """Return the rows that `compact_slots` leaves, by selecting them."""
    return np.asarray(table[table[:, STAMP] != 0])


def used_slots_reference(table: Table, facts: Ints) -> dict[tuple[int, int], int]:
    """Return what `open_slots` and `close_slots` leave: the slot of each id."""
    used = np.flatnonzero(table[: facts[USED_SLOTS], STAMP] != 0).tolist()
    return {(int(table[s, ID_HIGH]) % 2**64, int(table[s, ID_LOW]) % 2**64): s for s in used}


def stamp_reference(table: Table, slots: Ints, chunk: int) -> None:
    """Do what `stamp` does, at once."""
    table[slots, STAMP] = chunk
    np.add.at(table[:, HEAT], slots, 1)
