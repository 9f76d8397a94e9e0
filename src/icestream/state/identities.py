"""Identities of groups, keys and rows as flat arrays: sorted, numbered, looked up."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from icestream.core.arrays import Ids, Ints, Mask
from icestream.kernels import sorted_run
from icestream.kernels.lifetimes.pairs import number_pairs


@dataclass(frozen=True, slots=True)
class IdRange:
    """The groups with `low <= id_high < high`."""

    low: int
    high: int

    @classmethod
    def of_key_groups(cls, first: int, end: int, groups: int) -> IdRange:
        """Return the ids of key groups `first <= group < end`, of so many."""
        low, high = (-(-(group << 32) // groups) << 32 for group in (first, end))
        return cls(low, high)

    def holds(self, id_high: Ids) -> Mask:
        inside: Mask = (id_high >= np.uint64(self.low)) & (id_high <= np.uint64(self.high - 1))
        return inside

    def meets(self, other: IdRange) -> bool:
        """Return whether some ids are in both."""
        return self.low < other.high and other.low < self.high

    def within(self, other: IdRange) -> IdRange:
        """Return the part of it that is in another."""
        low = max(self.low, other.low)
        return IdRange(low, max(low, min(self.high, other.high)))

    def clip(self, first: Ids, last: Ids) -> tuple[Ids, Ids, Mask]:
        """Return the parts of ranges, given by both ends, that are in it, and which have one."""
        low, high = np.uint64(self.low), np.uint64(self.high - 1)
        return np.maximum(first, low), np.minimum(last, high), (first <= high) & (last >= low)


EVERY_ID = IdRange(0, 1 << 64)


def keep_ids(header: MutableMapping[str, Any], keeps: IdRange | None) -> None:
    """Note in a header the identities of a shard whose segments have groups of others, too."""
    header["keeps"] = None if keeps is None else [keeps.low, keeps.high]


def kept_ids(header: MutableMapping[str, Any]) -> IdRange | None:
    """Return the identities that `keep_ids` noted."""
    return None if header.get("keeps") is None else IdRange(*header["keeps"])


def identities(entries: Ints) -> tuple[Ids, Ids]:
    """Return id_high and id_low of the groups of entries, as arrays."""
    id_high, id_low = (
        np.ascontiguousarray(entries[:, column]).view(np.uint64) for column in (0, 1)
    )
    return id_high, id_low


def in_order(id_high: Ids, id_low: Ids) -> Ints:
    """Return the sort order of identities of groups."""
    order = np.empty(len(id_high), dtype=np.int64)
    is_ordered = sorted_run.order_identities(
        np.ascontiguousarray(id_high), np.ascontiguousarray(id_low), order
    )
    return order if is_ordered else np.lexsort((id_low, id_high))


def distinct(id_high: Ids, id_low: Ids) -> tuple[Ids, Ids, Ints]:
    """Return the distinct identities of groups, sorted, and the position of each given one.

    Ids that are sorted already, as the changes of a batch are, are not sorted again.
    """
    order: Any = slice(None)
    rises, same = id_high[1:] > id_high[:-1], id_high[1:] == id_high[:-1]
    if not (rises | (same & (id_low[1:] >= id_low[:-1]))).all():
        order = in_order(id_high, id_low)
    high, low = id_high[order], id_low[order]
    new = np.ones(len(high), dtype=np.bool_)
    new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    numbers = np.empty(len(high), dtype=np.int64)
    numbers[order] = np.cumsum(new) - 1
    return high[new], low[new], numbers


def numbered(id_high: Ids, id_low: Ids) -> tuple[Ints, Ints]:
    """Number the distinct identities: (number of each row, first row of each number)."""
    index = np.zeros(1 << max(4, (2 * len(id_high)).bit_length()), dtype=np.int64)
    numbers, heads = np.empty(len(id_high), dtype=np.int64), np.empty(len(id_high), dtype=np.int64)
    count = number_pairs(id_high, id_low, index, numbers, heads)
    return numbers, heads[:count]


def places_among(id_high: Ids, id_low: Ids, others_id_high: Ids, others_id_low: Ids) -> Ints:
    """Return where each identity is among distinct others, or -1."""
    numbers, heads = numbered(
        np.concatenate([others_id_high, id_high]), np.concatenate([others_id_low, id_low])
    )
    place = np.full(len(heads), -1, dtype=np.int64)
    place[numbers[: len(others_id_high)]] = np.arange(len(others_id_high))
    return place[numbers[len(others_id_high) :]]
