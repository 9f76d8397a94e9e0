"""Nexmark's events: a function of the seed, with the proportions and the skew of the suite."""

from __future__ import annotations

import numpy as np
import pytest

from bench.nexmark.events import FIRST_ID, Nexmark


def test_events_are_a_function_of_the_seed() -> None:
    first, again, other = (Nexmark(1000, seed).tables() for seed in (1, 1, 2))
    assert all(first[name].equals(again[name]) for name in first)
    assert not any(first[name].equals(other[name]) for name in first)


def test_proportions_and_skew_are_those_of_the_suite() -> None:
    tables = Nexmark(50_000).tables()
    assert {name: len(table) for name, table in tables.items()} == {
        "person": 1000,
        "auction": 3000,
        "bid": 46_000,
    }
    auction, bidder, channel = (
        np.asarray(tables["bid"][name]) for name in ("auction", "bidder", "channel")
    )
    assert np.mean((auction - FIRST_ID) % 100 == 0) == pytest.approx(0.5, abs=0.02)
    assert np.mean((bidder - FIRST_ID) % 100 == 1) == pytest.approx(0.75, abs=0.02)
    hot = np.isin(channel, ["Google", "Facebook", "Baidu", "Apple"])
    assert np.mean(hot) == pytest.approx(0.5, abs=0.02)
    seller = np.asarray(tables["auction"]["seller"])
    assert np.mean((seller - FIRST_ID) % 100 == 0) == pytest.approx(0.75, abs=0.03)
    assert tables["bid"].nbytes / 46_000 == pytest.approx(180, rel=0.25)


def test_times_follow_the_rate_and_auctions_expire_later() -> None:
    tables = Nexmark(10_000, rate=1000).tables()
    times = np.asarray(tables["bid"]["dateTime"].cast("int64"))
    assert (np.diff(times) >= 0).all()
    assert times[-1] - times[0] == pytest.approx(10_000_000, rel=0.01)
    auctions = tables["auction"]
    opened, closed = (np.asarray(auctions[name].cast("int64")) for name in ("dateTime", "expires"))
    assert (closed > opened).all()
