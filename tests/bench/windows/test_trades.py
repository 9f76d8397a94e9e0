from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from bench.windows.trades import SYMBOLS, TradeColumns


@pytest.mark.parametrize(
    ("last", "count"), [(99, 50), (1_234, 1_000), (2_999, 2_950), (700, 9_999)]
)
def test_oracle_averages_of_trades(last: int, count: int) -> None:
    trades = TradeColumns(1_000, cycle=500)
    batches = list(trades.batches(0, last + 1, 300))
    symbols, prices, volumes = (
        np.concatenate([batch[column] for batch in batches]).tolist() for column in (1, 2, 3)
    )
    inside = range(max(last - count + 1, 0), last + 1)
    own = [i for i in inside if symbols[i] == last % SYMBOLS]
    total = sum(Fraction(prices[i]) * volumes[i] for i in own)
    assert trades.average(last, count) == float(total / sum(volumes[i] for i in own))
    assert trades.volume(last, count) == sum(volumes[i] for i in inside)


@pytest.mark.parametrize("rate", [1, 300_000, 1_000_000, 3_000_000])
def test_events_come_at_their_rate_and_do_not_depend_on_the_cut(rate: int) -> None:
    trades = TradeColumns(rate, cycle=500)
    once = np.concatenate([times for times, *_ in trades.batches(0, 3_000, 500)])
    parts = np.concatenate([times for times, *_ in trades.batches(0, 3_000, 70)])
    assert (once == parts).all()
    assert once.tolist() == [i * 1_000_000 // rate for i in range(3_000)]
