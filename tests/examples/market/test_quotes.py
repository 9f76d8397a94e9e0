from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from examples.market.quotes import LiveQuotes, name_of, number_of
from icestream.core.errors import DefinitionError


def test_oracle_quotes_are_written_after_they_are_made(tmp_path: Path) -> None:
    feed = LiveQuotes(tmp_path, symbols=50, rate=5_000, every=0.05)
    feed.start()
    time.sleep(0.6)
    feed.stop()
    feed.check()
    now = time.time_ns() // 1000
    symbols, times = feed.written
    tables = [pq.read_table(path) for path in sorted(tmp_path.glob("0*.parquet"))]
    written = np.concatenate([np.asarray(t.column("ts").cast("int64")) for t in tables])
    names = [name for table in tables for name in table.column("symbol").to_pylist()]
    assert written.tolist() == times.tolist()
    assert [number_of(name) for name in names] == symbols.tolist()
    assert (np.diff(times) >= 0).all()
    assert feed.began <= times[0] <= times[-1] <= now
    seconds = (times[-1] - times[0]) / 1e6
    assert feed.quotes == pytest.approx(5_000 * seconds, rel=0.2)
    counts = np.bincount(symbols, minlength=50)
    assert counts[0] > 3 * counts[25:].mean()


def test_crash_a_failed_feed_says_so(tmp_path: Path) -> None:
    feed = LiveQuotes(tmp_path / "missing", symbols=1, rate=1_000, every=0.01)
    feed.start()
    feed.join(10)
    with pytest.raises(FileNotFoundError):
        feed.check()


def test_names_are_numbers_in_letters() -> None:
    assert [number_of(name_of(n)) for n in (0, 1, 25, 26, 3000)] == [0, 1, 25, 26, 3000]


def test_a_feed_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="at least one symbol"):
        LiveQuotes(tmp_path, symbols=0, rate=1)
