from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from icestream.state.log.ipc import read_batch, read_table, write_table

ROWS = pa.table({"n": [1, 2, 3], "s": ["ab", "cde", "f"]})


def test_what_was_written_is_read() -> None:
    payload = write_table(ROWS).to_pybytes()
    assert read_table(payload).equals(ROWS)
    assert read_batch(payload).equals(ROWS.to_batches()[0])


@pytest.mark.parametrize("read", [read_batch, read_table])
@pytest.mark.parametrize("offset", [-1, 1, 2**31 - 1])
def test_values_that_do_not_fit_are_refused(read: object, offset: int) -> None:
    """Places of texts that lead elsewhere are found out, not followed."""
    payload = write_table(ROWS).to_pybytes()
    places = struct.pack("<4i", 0, 2, 5, 6)
    assert payload.count(places) == 1
    wrong = payload.replace(places, struct.pack("<4i", 0, 2, offset, 6))
    assert callable(read)
    with pytest.raises(pa.ArrowInvalid):
        read(wrong)


def test_a_stream_without_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="has no batch"):
        read_batch(write_table(ROWS.slice(0, 0)).to_pybytes())
