"""Update streams and the numbers of their keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError, InputError
from icestream.operators.latest.update_stream import KeyDirectory, UpdateStream

SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])


@given(batches=st.lists(st.lists(st.integers(0, 200), max_size=80), max_size=5))
def test_oracle_keys_are_numbered_as_by_a_dict(batches: list[list[int]]) -> None:
    directory, plain = KeyDirectory(), dict[int, int]()
    for batch in batches:
        id_high = np.array(batch, dtype=np.uint64)
        found = directory.numbers(id_high, id_high * np.uint64(2**33 + 7))
        assert found.tolist() == [plain.setdefault(key, len(plain)) for key in batch]
    assert len(directory) == len(plain)


def test_columns_that_are_not_there_are_refused() -> None:
    with pytest.raises(DefinitionError, match="no column 'x'"):
        UpdateStream(SCHEMA, ("x",), "t")
    with pytest.raises(DefinitionError, match="integer or a timestamp"):
        UpdateStream(SCHEMA, ("v",), "k")
    with pytest.raises(DefinitionError, match="part of its key"):
        UpdateStream(SCHEMA, ("k", "t"), "t")


def test_rows_without_a_time_are_refused() -> None:
    rows = pa.RecordBatch.from_pylist([{"k": "a", "t": None, "v": 1}], schema=SCHEMA)
    with pytest.raises(InputError, match="ordered by it"):
        UpdateStream(SCHEMA, ("k",), "t").times(rows)


def test_a_stream_without_a_key_has_one() -> None:
    rows = pa.RecordBatch.from_pylist([{"k": "a", "t": 1}, {"k": "b", "t": 2}], schema=SCHEMA)
    stream = UpdateStream(SCHEMA, (), "t")
    assert KeyDirectory().numbers(*stream.identify(rows)).tolist() == [0, 0]
    assert stream.others == ("k", "v")
