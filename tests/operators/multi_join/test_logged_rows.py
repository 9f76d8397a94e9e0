from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import DamageError
from icestream.core.times import INFINITY
from icestream.operators.multi_join.logged_rows import EPOCHS, LoggedRows
from icestream.state.log.format import NO_MARKER, Record
from icestream.state.rows import RowCodec

CODECS = tuple(RowCodec(pa.schema([("x", kind)])) for kind in (pa.int64(), pa.string()))
#: two rows: identity, lifetime, then words and nulls, bytes of the text, the text
SOUND = (5, 1, 0, 9, 3 << 32, 2, 0x6261, 5, 2, 0, 9, 2 << 32 | 1, 0)


def record(words: Sequence[int], port: int = 1, epoch: int = 3, cut: int = 0) -> Record:
    payload = np.array(words, dtype=np.int64).tobytes()
    payload = payload[: len(payload) - cut]
    return Record(1, 0, port, epoch, INFINITY, NO_MARKER, 2, memoryview(payload))


def test_rows_of_a_record_are_found() -> None:
    rows = LoggedRows.of(record(SOUND), CODECS, "log")
    assert rows.starts.tolist() == [0, 7]
    assert rows.id_low.tolist() == [1, 2]


@pytest.mark.parametrize(
    "nonsense",
    [
        record(SOUND, port=2),
        record(SOUND, epoch=-1),
        record(SOUND, epoch=EPOCHS),
        record(SOUND, cut=1),
        record(SOUND[:-1]),
        record(()),
        record((*SOUND[:4], 1 << 62, *SOUND[5:])),
        record((*SOUND[:4], -1, *SOUND[5:])),
        record((*SOUND[:5], 9, *SOUND[6:])),
        record((6, *SOUND[1:])),
    ],
    ids=["port", "no epoch", "epoch", "bytes", "end", "none", "size", "negative", "text", "order"],
)
def test_a_record_that_makes_no_sense_is_damage(nonsense: Record) -> None:
    with pytest.raises(DamageError, match="does not hold rows of a join"):
        LoggedRows.of(nonsense, CODECS, "log")
