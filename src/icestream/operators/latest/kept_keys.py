"""The keys that a shard takes over from its parents, under new numbers.

Idea: operators over whole batches number their keys and keep arrays by these numbers. If the number
of shards changes, a shard takes the keys of its range from each parent, numbered one parent after
the other, and whatever refers to them. A shard that forgets keys takes the others over from itself.

Invariant: keys keep their rows, and rows keep their order
(`test_oracle_any_number_of_shards_at_any_version_changes_no_row`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Mask
from icestream.kernels.hashing import START_HIGH
from icestream.operators.latest.saved_arrays import State
from icestream.state.identities import IdRange


class KeptKeys:
    """The keys of parents in a range of ids."""

    def __init__(self, kept: Sequence[Mask]) -> None:
        """Choose keys of each parent, in the order of their numbers."""
        self._kept = list(kept)
        counts = [int(np.count_nonzero(each)) for each in self._kept]
        self._starts = np.cumsum([0, *counts])

    @classmethod
    def of(cls, known: Sequence[Ints], keeps: IdRange, *, keyless: bool) -> KeptKeys:
        """Choose among keys given by rows of their ids; without key columns there is only one."""
        found = [np.ascontiguousarray(each[:, 0]).view(np.uint64) for each in known]
        if keyless:
            found = [np.full(len(each), START_HIGH) for each in found]
        return cls([keeps.holds(each) for each in found])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def by_key(self, states: Sequence[State], name: str) -> npt.NDArray[Any]:
        """Return an array with an element for each key, which may have had room for more."""
        arrays = (each[name] for each in states)
        pairs = zip(arrays, self._kept, strict=True)
        return np.concatenate([array[: len(kept)][kept] for array, kept in pairs])

    @property
    def kept(self) -> list[Mask]:
        return self._kept

    def shares(self) -> list[float]:
        """Return which share of each parent's keys is kept."""
        return [float(each.mean()) if len(each) else 0.0 for each in self._kept]

    def members(self, parent: int, keys: Ints) -> Mask:
        """Return which rows of a parent belong to a key, given the numbers that these had."""
        found: Mask = self._kept[parent][keys]
        return found

    def numbers(self, parent: int, keys: Ints) -> Ints:
        """Return the new numbers of keys of a parent, -1 for those of others, or for -1."""
        kept = self._kept[parent]
        fresh = np.where(kept, self._starts[parent] + np.cumsum(kept) - 1, -1)
        return np.where(keys < 0, -1, fresh[keys]) if len(fresh) else np.full_like(keys, -1)
