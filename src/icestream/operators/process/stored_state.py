"""A state variable of the groups at hand, in the store: read once and written once a portion.

Idea: both interfaces for user code hold what they read and wrote in a form of their own. When a
portion of groups is done, what changed reaches the store in one call: groups that were replaced are
rewritten, all others are appended to, without a read.

Invariant: only what user code changed is written (`test_reading_writes_nothing`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Slots
from icestream.core.times import Micros
from icestream.operators.lifetimes.changes import taken
from icestream.operators.process.declarations import EXPIRY, Declared
from icestream.state.groups.spec import GroupRows, Groups


class AtHand(Protocol):
    """The groups at hand."""

    slots: Slots
    watermark: Micros

    def store(self) -> Groups:
        """Return the store of the groups' rows."""


class StoredVariable(ABC):
    """A state variable of the groups at hand; a group is identified by its position among them."""

    def __init__(self, at_hand: AtHand, number: int, name: str, declared: Declared) -> None:
        self._at_hand = at_hand
        self._number = number
        self.name = name
        self._declared = declared
        self._lifetime = declared.lifetime

    @abstractmethod
    def flush(self) -> None:
        """Write what changed."""

    def _read(self) -> GroupRows:
        """Return the stored rows of all groups, without those that have expired."""
        groups = self._at_hand
        return living(groups.store().read(self._number, groups.slots), groups.watermark)

    def _joined(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """Return batches of stored rows, or none, as one."""
        if batches:
            return pa.concat_batches(batches) if len(batches) > 1 else batches[0]
        return pa.RecordBatch.from_pylist([], schema=self._declared.stored)

    def _write(
        self, replaced: Sequence[int] | Ints, owners: Sequence[int] | Ints, rows: pa.RecordBatch
    ) -> None:
        """Write rows of some positions; the groups at `replaced`, ascending, have no others."""
        anew, each = (np.asarray(some, dtype=np.int64) for some in (replaced, owners))
        again = np.isin(each, anew)
        groups = self._at_hand
        if len(anew):
            picked = np.flatnonzero(again)
            picked = picked[np.argsort(each[picked], kind="stable")]
            found = GroupRows(np.searchsorted(anew, each[picked]), taken(rows, picked))
            groups.store().rewrite(self._number, groups.slots[anew], found)
        if not again.all():
            more = rows if not again.any() else rows.filter(pa.array(~again))
            groups.store().append(self._number, groups.slots[each[~again]], more)


def living(found: GroupRows, watermark: Micros) -> GroupRows:
    """Drop rows of stored state whose expiry the watermark has reached."""
    place = found.rows.schema.get_field_index(EXPIRY)
    if place < 0:
        return found
    alive = np.asarray(found.rows.column(place)) > watermark
    return found if alive.all() else found.where(alive)


def with_expiry(rows: pa.RecordBatch, expiry: Sequence[Micros] | Ints) -> pa.RecordBatch:
    """Append the column of expiries to rows of stored state."""
    return rows.append_column(
        pa.field(EXPIRY, pa.int64(), nullable=False), pa.array(expiry, type=pa.int64())
    )
