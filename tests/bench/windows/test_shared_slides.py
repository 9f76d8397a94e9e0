from __future__ import annotations

import pyarrow as pa

from bench.windows.shared_slides import RATE, SYMBOLS, trades


def test_trades_do_not_depend_on_the_cut() -> None:
    whole = trades(3, 4)
    assert whole.num_rows == 4 * RATE
    assert pa.concat_tables([trades(3, 1), trades(4, 3)]).equals(whole)
    assert whole.column("symbol").unique().to_pylist() == list(range(SYMBOLS))
