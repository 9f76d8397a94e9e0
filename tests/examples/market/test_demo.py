from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from examples.market.demo import demo
from examples.market.latest_rows import LatestRows
from icestream.core.errors import DefinitionError
from icestream.demo.results import NewestWindow

MINUTE = 60_000_000


@pytest.mark.slow
@pytest.mark.spark
def test_oracle_the_demo_ends_with_the_figures_of_the_last_window(tmp_path: Path) -> None:
    output = io.StringIO()
    home = tmp_path / "demo"
    code = demo(
        events=60_000, window="10 minutes", keep=home, console=Console(file=output, width=140)
    )
    assert code == 0
    trades = pq.read_table(home / "events")
    times = trades.column("timestamp").cast(pa.int64()).to_numpy()
    symbols = trades.column("symbol").to_numpy()
    prices, volumes = (trades.column(name).to_numpy() for name in ("price", "volume"))

    newest = NewestWindow(home / "results-per-slide", "symbol")
    newest.refresh()
    assert newest.start == newest.end - 10 * MINUTE
    assert len(newest.rows) == 100
    for row in newest.rows:
        mine = (symbols == row["symbol"]) & (times >= newest.start) & (times < newest.end)
        last = np.flatnonzero(mine & (times == times[mine].max()))[-1]
        assert (row["trades"], row["volume"]) == (mine.sum(), volumes[mine].sum())
        assert row["last_price"] == prices[last]
        vwap = np.average(prices[mine], weights=volumes[mine])
        assert row["vwap"] == pytest.approx(vwap, rel=1e-12)

    # the order of trades is that of time, then of arrival
    latest = LatestRows(home / "results-per-trade", "symbol")
    latest.refresh()
    assert len(latest.rows) == 100
    for symbol, row in latest.rows.items():
        assert row["time"] >= times.max() - MINUTE
        mine = (symbols == symbol) & (times > row["time"] - 10 * MINUTE) & (times <= row["time"])
        vwap = np.average(prices[mine], weights=volumes[mine])
        assert row["vwap"] == pytest.approx(vwap, rel=1e-12)

    text = output.getvalue()
    assert "SUM(volume * price) / SUM(volume) AS vwap FROM trades [RANGE 10 MINUTES]" in text
    shown = max(newest.rows, key=lambda row: row["vwap"] * row["volume"])
    line = next(line for line in text.splitlines() if shown["symbol"] in line)
    assert f"{shown['vwap']:,.4f}" in line
    assert f"{shown['volume']:,}" in line
    rows = pq.read_table(home / "results-per-trade").num_rows
    assert f"{rows:,}" in text
    # the trades of the last second wait for the watermark
    assert 59_000 < rows < 60_000


def test_a_folder_with_something_in_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(DefinitionError, match="is not empty"):
        demo(keep=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_arguments_that_make_no_demo_are_refused() -> None:
    with pytest.raises(DefinitionError, match="at least 1 trade"):
        demo(events=0)
    with pytest.raises(DefinitionError, match="choose one of both, trade, slide"):
        demo(results="colour")
    with pytest.raises(DefinitionError, match="rate must be at least 1"):
        demo(rate=0)
    with pytest.raises(DefinitionError, match="cannot read 'much' as a size"):
        demo(memory="much")
