"""Sets of keys by their identity, over whole arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.kernels.hashing import START_HI, START_LO
from icestream.operators.lifetimes.consolidate import numbered
from icestream.operators.payload_identity import identified


def places_among(hi: Ids, lo: Ids, others_hi: Ids, others_lo: Ids) -> Ints:
    """Return the position of each identity among distinct others, or -1 if it is not there."""
    numbers, heads = numbered(np.concatenate([others_hi, hi]), np.concatenate([others_lo, lo]))
    place = np.full(len(heads), -1, dtype=np.int64)
    place[numbers[: len(others_hi)]] = np.arange(len(others_hi))
    return place[numbers[len(others_hi) :]]


def newest(hi: Ids, lo: Ids, times: Ints, trust: Ints | None = None) -> tuple[Ints, Ints, Ints]:
    """Fold updates in the order of arrival to one for each key.

    Returns the row of the newest update of each key (among equal times the most trusted one, then
    the one that arrived last), the key number of each update, and the first row of each key. Keys
    are in the order in which they first appeared.
    """
    numbers, heads = numbered(hi, lo)
    order = np.lexsort((times, numbers) if trust is None else (trust, times, numbers))
    last = np.searchsorted(numbers[order], np.arange(len(heads)), side="right") - 1
    return order[last], numbers, heads


def identity_of(payload: pa.RecordBatch, keys: tuple[str, ...]) -> tuple[Ids, Ids]:
    """Return (id_high, id_low) of each row's key; without key columns all rows have one key."""
    if keys:
        return identified(payload, keys)
    return np.full(payload.num_rows, START_HI), np.full(payload.num_rows, START_LO)
