from __future__ import annotations

import numpy as np
import pyarrow as pa

from icestream.operators.lifetimes.changes import payload_of
from icestream.operators.multi_join.results import ROWS_AT_ONCE, JoinResults, Members
from icestream.operators.multi_join.spec import MultiJoinSpec

TEXT = pa.schema([("s", pa.string())])


def test_bounded_results_come_in_small_pieces() -> None:
    """Wide members are decoded a few at a time, all of them once and in order."""
    spec = MultiJoinSpec(0, (TEXT, TEXT), ((0, "s", "a"), (1, "s", "b")), 4)
    results = JoinResults(spec, room=1 << 14)
    left = pa.record_batch([pa.array([f"{n:03d}" * 100 for n in range(40)])], schema=TEXT)
    encoded = results.codecs[0].encode(left)
    places = encoded.offsets[:-1]
    ones = np.ones(40, dtype=np.uint64)
    members = Members(
        {0: places},
        {1: (left, np.arange(40)[::-1])},
        np.column_stack([np.arange(40), np.arange(40) + 5]),
        ones,
        ones,
    )
    pieces = list(results.made(encoded.words, members))
    assert len(pieces) >= 3
    assert max(piece.nbytes for piece in pieces) < 1 << 14
    rows = pa.Table.from_batches([payload_of(piece) for piece in pieces])
    assert rows.column("a").to_pylist() == left.column(0).to_pylist()
    assert rows.column("b").to_pylist() == left.column(0).to_pylist()[::-1]
    assert JoinResults(spec, room=1 << 40).capacity() == ROWS_AT_ONCE
