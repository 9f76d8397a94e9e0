"""The obvious versions of the kernels in `icestream.kernels.groups.eviction`."""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Mask, Table
from icestream.kernels.groups.eviction import LARGE
from icestream.kernels.groups.heap import (
    ASKED,
    CHAIN,
    CLEAN,
    COLD,
    FLAGS,
    NO_ROOT,
    ROOT,
    STALE,
    WHOLE,
    WORDS,
)


def judge_reference(
    table: Table, at: int, slots: Ints, limit: int, hot_limit: int, deltas: bool
) -> tuple[Mask, int, int]:
    """Return what `judge` fills in and returns, by columns."""
    flags, chain, root, words = (table[slots, at + c] for c in (FLAGS, CHAIN, ROOT, COLD))
    length = chain & 0xFFFFFFFF
    long = (length >= np.where(flags & WHOLE, hot_limit, limit)) & (words < length * LARGE)
    whole = (flags & STALE != 0) | (root == NO_ROOT) | long | (not deltas)
    cold = flags & WHOLE == 0
    return whole, int(cold.sum()), int((whole & cold).sum())


def judge_leaving_reference(
    table: Table,
    at: int,
    slots: Ints,
    limit: int,
    few: int,
    scattered: int,
    deltas: bool,
    clean_is_free: bool,
) -> tuple[Ints, Mask, Mask]:
    """Return what `judge_eviction` lists and returns, by columns."""
    stale = table[slots, at + FLAGS] & STALE != 0
    slots = slots[(table[slots, at + WORDS] > 0) | stale]
    words, clean, chain, root, cold, flags = (
        table[slots, at + column] for column in (WORDS, CLEAN, CHAIN, ROOT, COLD, FLAGS)
    )
    here, stale, length = flags & WHOLE != 0, flags & STALE != 0, chain & 0xFFFFFFFF
    small = cold < length * LARGE
    apart = here & (length >= few) & (cold < length * scattered)
    dirty = (words > clean) | stale | (here & (words > 0) & ((length > limit) & small | apart))
    whole = stale | (root == NO_ROOT) | ((length >= limit) & small) | apart | (not deltas)
    if not clean_is_free:
        dirty |= words > 0
        whole |= here & dirty
    return slots, dirty, whole


def list_apart_reference(table: Table, at: int, slots: Ints, few: int, scattered: int) -> list[int]:
    """Return what `list_apart` lists, by columns."""
    length = table[slots, at + CHAIN] & 0xFFFFFFFF
    apart = (length >= few) & (table[slots, at + COLD] < length * scattered)
    return np.flatnonzero(apart).tolist()


def let_go_reference(table: Table, at: int, slots: Ints) -> None:
    """Do what `let_go` does, by columns."""
    flags = table[slots, at + FLAGS]
    there = table[slots, at + ROOT] != NO_ROOT
    left = np.where(flags & WHOLE != 0, flags & ~(WHOLE | ASKED), flags)
    table[slots, at + FLAGS] = np.where(there, left, flags | WHOLE)
