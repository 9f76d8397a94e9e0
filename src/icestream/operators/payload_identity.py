"""The identity of a payload's key columns."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from icestream.core.arrays import Ids
from icestream.state.keys import KeyCodec


@lru_cache(maxsize=64)
def _codec(schema: pa.Schema) -> KeyCodec:
    return KeyCodec(schema)


def identified(payload: pa.RecordBatch, keys: tuple[str, ...]) -> tuple[Ids, Ids]:
    """Return (id_high, id_low) of each row, the identity of some columns of its payload."""
    chosen = payload.select(list(keys))
    return _codec(chosen.schema).identify(chosen)
