from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from bench.research import workloads as w
from icestream.core.errors import InputError

COST = 1_000


def test_a_workload_is_its_seed() -> None:
    for make in w.PATTERNS.values():
        one, same, other = (make(w.zipf(20, 0.9), 2_000, 200.0, seed) for seed in (1, 1, 2))
        assert one.times.tolist() == same.times.tolist()
        assert one.keys.tolist() == same.keys.tolist()
        assert one.times.tolist() != other.times.tolist() or one.keys.tolist() != (
            other.keys.tolist()
        )


def test_updates_are_in_order_and_follow_their_shares() -> None:
    shares = w.zipf(20, 0.6)
    for name, make in w.PATTERNS.items():
        stream = make(shares, 40_000, COST / 5, 1)
        assert (np.diff(stream.times) >= 0).all()
        assert stream.load(COST) == pytest.approx(5, rel=0.1)
        if name != "drifting":
            found = stream.rates / stream.rates.sum()
            assert found == pytest.approx(shares, rel=0.25)


def test_shares_are_what_their_names_say() -> None:
    assert w.equal(4).tolist() == [0.25] * 4
    assert w.zipf(3, 1.0) * 11 / 6 == pytest.approx([1, 1 / 2, 1 / 3])
    assert w.slow_and_fast(4, 2, 3.0) * 8 == pytest.approx([3, 3, 1, 1])


def test_keys_take_turns() -> None:
    stream = w.in_turn(3, 7, 10.0)
    assert stream.keys.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert stream.times.tolist() == [10, 20, 30, 40, 50, 60, 70]


def test_slow_keys_can_come_at_once() -> None:
    stream = w.slow_bursts(w.slow_and_fast(10, 8, 50), 20_000, 200.0, 1, slow=8)
    slow = stream.times[stream.keys >= 2]
    _, together = np.unique(slow, return_counts=True)
    assert (together % 8 == 0).all()


def test_clocks_tick_evenly_unless_told_otherwise() -> None:
    even = w.clocks(w.equal(5), 5_000, 100.0, 1)
    uneven = w.clocks(w.equal(5), 5_000, 100.0, 1, spread=1.0)
    for stream, least, most in ((even, 0.0, 0.01), (uneven, 0.8, 2.0)):
        gaps = np.diff(stream.times[stream.keys == 0])
        assert least <= gaps.std() / gaps.mean() <= most


def test_a_market_is_uneven_and_busiest_at_its_ends() -> None:
    stream = w.quotes(300, 50_000, 100.0, 1)
    rates = np.sort(stream.rates)
    assert rates[-3:].mean() > 20 * max(rates[150], 1e-12)
    day, _ = np.histogram(stream.times, 10, range=(0, stream.until))
    assert day[0] + day[-1] > 2 * day[4:6].sum() * 0.75


def test_ticks_are_read_from_a_file(tmp_path: Path) -> None:
    day = 24 * 3600 * 1000
    lines = ["at,name,price"]
    lines += [f"{stamp},{name},1.5" for stamp, name in ((5, "A"), (7, "B"))]
    lines += [f"{day + stamp},{name},2" for stamp, name in ((0, "B"), (60, "C"), (60, "B"))]
    path = tmp_path / "ticks.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    together = w.read_ticks(str(path), time="at", key="name")
    assert together.times.tolist() == [0, 60_000, 60_000]
    assert together.keys.tolist() == [0, 1, 0]
    spread = w.read_ticks(str(path), time="at", key="name", spread=1_000)
    assert spread.times.tolist() == [0, 60_000, 60_500]
    whole = w.read_ticks(str(path), time="at", key="name", busiest=False)
    assert len(whole) == 5
    assert whole.key_count == 3


def test_files_and_streams_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ticks.csv"
    path.write_text("at,name\n1,A\n")
    with pytest.raises(InputError, match="give its columns"):
        w.read_ticks(str(path), time="when", key="name")
    with pytest.raises(InputError, match="unit"):
        w.read_ticks(str(path), time="at", key="name", unit="days")
    one = np.array([1], dtype=np.int64)
    with pytest.raises(InputError, match="one of each"):
        w.UpdateWorkload(one, np.array([], dtype=np.int64), 1, 5)
    with pytest.raises(InputError, match="must be sorted by time"):
        w.UpdateWorkload(np.array([2, 1]), np.array([0, 0]), 1, 5)
    with pytest.raises(InputError, match="ends at"):
        w.UpdateWorkload(one, one * 0, 1, 0)
    with pytest.raises(InputError, match="numbered"):
        w.UpdateWorkload(one, one, 1, 5)
