from __future__ import annotations

from pathlib import Path

import pytest

from bench.joins.join_life import (
    FOREVER,
    LEAST_BUDGET,
    WINDOWED,
    Scale,
    Turns,
    judge,
    recovered,
    run,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", [WINDOWED, FOREVER])
def test_bounded_deferring_joins_stay_on(kind: str, tmp_path: Path) -> None:
    found = run(kind, Scale(versions=150, rows=400, window=20), tmp_path)
    assert found["longest_round"] > 0
    shares, *others = judge({kind: found})
    assert shares.measured is not None
    assert shares.measured > 0
    assert all(each.holds for each in others)
    if kind == WINDOWED:
        # what has ended leaves log and index while rows flow and partitions owe results
        for name in ("log_bytes", "index_bytes"):
            assert found[name][4] < 1.2 * found[name][3]


def test_a_round_ends_where_turns_begin_again() -> None:
    turns = Turns()
    for ended in ([-1, -1], [0, 31], [0, 31], [0, 200], [0, 10]):
        turns.note(ended)
    assert turns.longest == 4


def test_what_was_spilled_comes_back(tmp_path: Path) -> None:
    found = recovered(tmp_path)
    assert found["bytes_spilled"] > 5 * LEAST_BUDGET
    (bar,) = judge({"recovered": found})
    assert bar.holds
