from __future__ import annotations

import contextlib

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.arrays import Table
from icestream.kernels.packing import packed, unpacked
from icestream.state.keys import KeyCodec

ENDS = np.array([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1])


def column(dice: np.random.Generator, rows: int) -> Table:
    kinds = [
        np.full(rows, dice.integers(-9, 9)),
        dice.choice(ENDS, rows),
        dice.integers(-5, 300, rows) * 1_000,
        dice.random(rows).view(np.int64),
        dice.integers(1, 10_001, rows).astype(float).view(np.int64),
        1_700_000_000_000_000 + 3_333 * np.arange(rows),
    ]
    return kinds[dice.integers(len(kinds))]


@pytest.mark.parametrize("seed", range(40))
def test_oracle_packed_tables_come_back(seed: int) -> None:
    dice = np.random.default_rng(seed)
    rows, width = int(dice.choice([0, 1, 2, 3, 40, 600])), int(dice.integers(3, 9))
    identities = dice.choice(ENDS, (int(dice.integers(1, 400)), 2))
    table = np.column_stack(
        [
            identities[dice.integers(len(identities), size=rows)],
            *(column(dice, rows) for _ in range(width - 2)),
        ]
    )
    found = packed(np.ascontiguousarray(table))
    assert found.nbytes <= table.nbytes
    assert (unpacked(found.tobytes(), rows, width) == table).all()


def test_a_table_that_does_not_get_smaller_stays_as_it_is() -> None:
    table = np.random.default_rng(1).choice(ENDS, (50, 3))
    assert packed(table[:1]) is not None
    assert (packed(table[:4]) == table[:4]).all()


def test_trades_of_few_stocks_take_a_quarter() -> None:
    dice, rows = np.random.default_rng(1), 4_000
    stocks = dice.integers(-(2**62), 2**62, (100, 2))
    table = np.column_stack(
        [
            stocks[np.arange(rows) % 100],
            np.ones(rows, dtype=np.int64),
            dice.uniform(1, 1_000, rows).view(np.int64),
            dice.integers(1, 10_001, rows).astype(float).view(np.int64),
            3_333 * np.arange(rows),
        ]
    )
    # a number of a stock, seven bytes of a price, three each of a volume and a time, the stocks
    assert packed(table).nbytes <= rows * 14 + 100 * 16 + 200


@pytest.mark.parametrize("seed", range(3))
def test_payloads_that_hold_no_table_are_refused(seed: int) -> None:
    dice, rows = np.random.default_rng(seed), 40
    identities = dice.choice(ENDS, (9, 2))[dice.integers(9, size=rows)]
    table = np.column_stack([identities, dice.integers(-5, 300, (rows, 2)) * 1_000])
    whole = packed(np.ascontiguousarray(table)).view(np.uint8)
    refused = 0
    for place in range(8 * 13):
        for change in (1, 0x80, 0xFF):
            other = whole.copy()
            other[place] ^= change
            try:
                unpacked(other.tobytes(), rows, 4)
            except ValueError:
                refused += 1
    assert refused > 8 * 9 * 3  # all but those of least words and zero bits
    for size in (0, 7, 8, 8 * 13, len(whole) - 1):
        with pytest.raises(ValueError, match=r"packed table|buffer|reshape|multiple|divisor"):
            unpacked(whole[:size].tobytes(), rows, 4)
    other = whole.copy()
    other[8 * 13 + 16 * int(whole[0])] = 200
    with pytest.raises(ValueError, match=r"none of the [0-9] identities"):
        unpacked(other.tobytes(), rows, 4)


def identities_of(keys: pa.Array) -> Table:
    codec = KeyCodec(pa.schema([("key", keys.type)]))
    found = codec.identify(pa.RecordBatch.from_arrays([keys], names=["key"]))
    return np.column_stack(found).view(np.int64)


@pytest.mark.parametrize("seed", range(40))
def test_oracle_tables_of_keys_come_back(seed: int) -> None:
    """Words from a few to all of 64 bits, nulls, texts, times in and out of order."""
    dice = np.random.default_rng(seed)
    rows = int(dice.choice([1, 50, 3_000]))
    bits = int(dice.choice([1, 7, 20, 40, 62, 63]))
    words = dice.integers(-(2**bits), 2**bits - 1, rows)
    nulls = dice.random(rows) < dice.choice([0, 0.01, 0.5, 1])
    keys = pa.array(words, mask=nulls)
    if seed % 5 == 4:
        keys = keys.cast(pa.string())
    times = 1_000 * dice.integers(0, int(dice.choice([1, 5, 2**40])), rows).cumsum()
    table = np.column_stack([identities_of(keys), dice.integers(0, 9, rows), times])
    if seed % 3 == 2:
        table = table[::-1]
    found = packed(np.ascontiguousarray(table))
    assert found.nbytes <= table.nbytes
    assert (unpacked(found.tobytes(), rows, 4) == table).all()


@pytest.mark.parametrize("nulls", [0, 0.1])
def test_keys_of_one_word_take_the_bytes_in_which_they_differ(nulls: float) -> None:
    dice, rows = np.random.default_rng(3), 4_000
    keys = pa.array(dice.integers(10**15, 10**15 + 2**23, rows), mask=dice.random(rows) < nulls)
    times = 1_700_000_000_000_000 + 1_000 * dice.integers(0, 200, rows).cumsum()
    table = np.column_stack([identities_of(keys), np.ones(rows, dtype=np.int64), times])
    # three bytes of a key and one of the time that passed, the head, and the identity of null
    assert packed(table).nbytes <= rows * 4 + 8 * 13 + 16


def test_tables_that_were_packed_before_words_and_steps_come_back() -> None:
    """Numbers of three identities, and a column that is 7 + 4 * [0, 1, 2, 255]."""
    identities = np.array([[5, -6], [7, 8], [2**63 - 1, 0]])
    head = np.array([3, 0, 0, 1, 0, 0, 0, 7, 2, 1])
    planes = np.array([0, 1, 2, 0, 0, 1, 2, 255], dtype=np.uint8)
    payload = head.tobytes() + identities.tobytes() + planes.tobytes()
    expected = [[5, -6, 7], [7, 8, 11], [2**63 - 1, 0, 15], [5, -6, 1_027]]
    assert unpacked(payload, 4, 3).tolist() == expected


def test_random_payloads_with_flags_never_leave_their_arrays() -> None:
    dice, rows = np.random.default_rng(5), 64
    table = np.column_stack(
        [identities_of(pa.array(dice.integers(0, 99, rows))), 1_000 * np.arange(rows) ** 2]
    )
    whole = packed(np.ascontiguousarray(table)).view(np.uint8)
    for _ in range(2_000):
        other = whole.copy()
        places = dice.integers(0, len(whole), 3)
        other[places] = dice.integers(0, 256, 3)
        with contextlib.suppress(ValueError):
            unpacked(other.tobytes(), rows, 3)
