"""The newest update of each key, over whole arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.kernels.hashing import START_HIGH, START_LOW
from icestream.operators.payload_identity import identified
from icestream.state.identities import numbered


def newest(
    id_high: Ids, id_low: Ids, times: Ints, trust: Ints | None = None
) -> tuple[Ints, Ints, Ints]:
    """Fold updates, given by the identities of keys, to the newest one of each key.

    Returns the row of the newest update of each key (among equal times the most trusted one, then
    the one that arrived last), the key number of each update, and the first row of each key. Keys
    are in the order in which they first appeared.
    """
    numbers, heads = numbered(id_high, id_low)
    order = np.lexsort((times, numbers) if trust is None else (trust, times, numbers))
    last = np.searchsorted(numbers[order], np.arange(len(heads)), side="right") - 1
    return order[last], numbers, heads


def identity_of(payload: pa.RecordBatch, keys: tuple[str, ...]) -> tuple[Ids, Ids]:
    """Return (id_high, id_low) of each update's key; without key columns all have one key."""
    if keys:
        return identified(payload, keys)
    return np.full(payload.num_rows, START_HIGH), np.full(payload.num_rows, START_LOW)
