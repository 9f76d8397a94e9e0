"""Update streams: rows with a key and a time, each an update of the previous row of its key.

Idea: every operator over update streams takes record batches in the order of arrival and returns
record batches; key and time columns pass through unchanged. `KeyDirectory` gives keys dense
numbers, so operators store their state by key in flat arrays.

Invariants:
1. Keys have equal numbers exactly if they are equal
   (`test_oracle_keys_are_numbered_as_by_a_dict`).
2. Keys that a shard takes over keep their rows, and rows keep their order
   (`test_oracle_any_number_of_shards_at_any_version_changes_no_row`).

Cost: one lookup in an open-addressing table per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask
from icestream.core.errors import DefinitionError, InputError
from icestream.kernels.hash_index import find, insert_all
from icestream.kernels.hashing import START_HIGH
from icestream.operators.folding.columns import InputColumn
from icestream.operators.latest.saved_arrays import State
from icestream.state.identities import IdRange, numbered
from icestream.state.keys import identified


@dataclass(frozen=True)
class UpdateStream:
    """Columns of an update stream, and which of them are its key and its time."""

    schema: pa.Schema
    #: columns of the update key; if empty, every row updates the previous one
    keys: tuple[str, ...]
    #: column of integers or timestamps by which the rows of a key are in order
    time: str

    def __post_init__(self) -> None:
        for name in (*self.keys, self.time):
            if self.schema.get_field_index(name) < 0:
                msg = f"an update stream of {self.schema.names} has no column {name!r}"
                raise DefinitionError(msg)
        kind = self.schema.field(self.time).type
        if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
            msg = f"the time of updates must be an integer or a timestamp; {self.time!r} is {kind}"
            raise DefinitionError(msg)
        if self.time in self.keys:
            msg = f"{self.time!r} is the time of the stream and cannot be part of its key"
            raise DefinitionError(msg)

    @property
    def others(self) -> tuple[str, ...]:
        """Return the columns that are neither key nor time."""
        return tuple(n for n in self.schema.names if n not in self.keys and n != self.time)

    def identify(self, rows: pa.RecordBatch) -> tuple[Ids, Ids]:
        """Return the identity of each row's key."""
        if not self.keys:
            zeros = np.zeros(rows.num_rows, dtype=np.uint64)
            return zeros, zeros
        return identified(rows, self.keys)

    def times(self, rows: pa.RecordBatch | pa.Table) -> Ints:
        """Return the time of each row; InputError if one is null."""
        column = rows.column(self.time)
        if column.null_count:
            msg = f"column {self.time!r} has no value in some rows; updates are ordered by it"
            raise InputError(msg)
        return InputColumn(column).integers


class KeyDirectory:
    """Numbers of keys: 0, 1, 2, ... in the order in which they first appeared."""

    def __init__(self) -> None:
        self._index = np.zeros(64, dtype=np.int32)
        self._rows = np.zeros((32, 2), dtype=np.int64)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def numbers(self, id_high: Ids, id_low: Ids) -> Ints:
        """Return the number of each key; new keys get the next ones."""
        found = np.empty(len(id_high), dtype=np.int64)
        if not find(self._index, self._rows, id_high, id_low, found):
            return found
        fresh = np.flatnonzero(found < 0)
        among, heads = numbered(id_high[fresh], id_low[fresh])
        self._enter(id_high[fresh[heads]], id_low[fresh[heads]])
        found[fresh] = self._used - len(heads) + among
        return found

    def state(self) -> Ints:
        """Return the keys in the order of their numbers, for `recall`."""
        found: Ints = self._rows[: self._used]
        return found

    def recall(self, keys: Ints) -> None:
        """Restore the keys of `state` with their numbers."""
        id_high, id_low = np.ascontiguousarray(keys.T)
        self._enter(id_high.view(np.uint64), id_low.view(np.uint64))

    def _enter(self, id_high: Ids, id_low: Ids) -> None:
        needed = self._used + len(id_high)
        if needed > len(self._rows):
            rows = np.zeros((2 * needed, 2), dtype=np.int64)
            rows[: self._used] = self._rows[: self._used]
            self._rows = rows
        fresh = np.arange(self._used, needed)
        self._rows[fresh, 0], self._rows[fresh, 1] = id_high.view(np.int64), id_low.view(np.int64)
        self._used = needed
        if 2 * needed > len(self._index):
            self._index = np.zeros(1 << (4 * needed - 1).bit_length(), dtype=np.int32)
            fresh = np.arange(needed)
        insert_all(self._index, self._rows, fresh)


def grown(array: Ints, size: int, fill: int) -> Ints:
    """Return an array by key of an update stream with room for `size`, new ones set to `fill`."""
    if size <= len(array):
        return array
    more = np.full(max(size, 2 * len(array)) - len(array), fill, dtype=array.dtype)
    return np.concatenate([array, more])


class KeptKeys:
    """The keys of parents in a range of ids, under new numbers, one parent after the other.

    A shard that forgets keys takes the others over from itself.
    """

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
