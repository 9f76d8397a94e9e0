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
