from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.market.generator import ARROW_SCHEMA, COLUMNS, SYMBOLS, TradeStream
from icestream.core.errors import DefinitionError

SECOND = 1_000_000


def times(table: pa.Table) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = table.column("timestamp").cast(pa.int64()).to_numpy()
    return found


def test_there_are_a_hundred_symbols_and_the_columns_agree() -> None:
    assert len(set(SYMBOLS)) == 100
    assert list(COLUMNS) == ARROW_SCHEMA.names


def test_oracle_rows_do_not_depend_on_the_pieces() -> None:
    stream = TradeStream(seed=7, disorder=SECOND)
    whole = stream.table(0, 150_000).combine_chunks()
    for first, count in ((0, 1), (1, 999), (60_000, 20_000), (149_999, 1)):
        assert stream.table(first, count).combine_chunks().equals(whole.slice(first, count))
    assert stream.table(5, 0).num_rows == 0


def test_another_seed_is_another_market() -> None:
    one, another = TradeStream(seed=1).table(0, 1_000), TradeStream(seed=2).table(0, 1_000)
    assert one.column("symbol").equals(another.column("symbol"))
    assert not one.column("price").equals(another.column("price"))


def test_symbols_take_turns() -> None:
    symbols = TradeStream().table(0, 200).column("symbol").to_pylist()
    assert symbols == [*SYMBOLS, *SYMBOLS]


def test_prices_are_cents_and_volumes_are_shares() -> None:
    table = TradeStream().table(0, 200_000)
    cents = table.column("price").to_numpy() * 100
    assert np.abs(cents - np.rint(cents)).max() < 1e-6
    assert cents.min() >= 1
    assert table.column("volume").type == pa.int32()
    assert table.column("volume").to_numpy().min() >= 1


def test_oracle_prices_move_a_little_with_each_trade() -> None:
    prices = TradeStream().table(0, 500_000).column("price").to_numpy().reshape(-1, 100)
    dear = prices[:, prices[0] > 100]
    steps = np.diff(np.log(dear), axis=0)
    assert np.sqrt(np.mean(steps**2)) == pytest.approx(2e-4, rel=0.2)
    assert dear.max(axis=0) / dear.min(axis=0) == pytest.approx(1, abs=0.2)


def test_oracle_the_rate_is_what_was_asked_for() -> None:
    stream = TradeStream(rate=700)
    per_second = np.bincount((times(stream.table(0, 7_000)) - stream.begin) // SECOND)
    assert per_second.tolist() == [700] * 10


@pytest.mark.parametrize("disorder", [0, 1, 5 * SECOND, 90 * SECOND])
def test_bounded_disorder_stays_below_its_bound(disorder: int) -> None:
    found = times(TradeStream(rate=500, disorder=disorder).table(0, 100_000))
    behind = np.maximum.accumulate(found) - found
    assert behind.max() < max(disorder, 1)
    assert behind.max() >= 0.9 * disorder - 1


def test_oracle_files_hold_the_stream_in_order(tmp_path: Path) -> None:
    stream = TradeStream(rate=100)
    files = list(stream.write(tmp_path, 2_500, seconds=10))
    assert [file.events for file in files] == [1000, 1000, 500]
    assert [file.until - stream.begin for file in files] == [10 * SECOND, 20 * SECOND, 25 * SECOND]
    read = pa.concat_tables([pq.read_table(file.path) for file in files])
    assert read.combine_chunks().equals(stream.table(0, 2_500).combine_chunks())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"rate": 0}, "rate must be at least 1"), ({"disorder": -1}, "disorder must not be negative")],
)
def test_nonsense_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        TradeStream(**arguments)


def test_files_of_no_time_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="at least 1 second"):
        next(TradeStream().write(tmp_path, 10, seconds=0))
