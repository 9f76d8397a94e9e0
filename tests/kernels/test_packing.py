from __future__ import annotations

import numpy as np
import pytest

from icestream.core.arrays import Table
from icestream.kernels.packing import packed, unpacked

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
