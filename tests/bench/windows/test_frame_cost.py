from __future__ import annotations

import pytest

from bench.windows.frame_cost import CASES, costs


@pytest.mark.parametrize("case", CASES)
def test_every_batch_has_a_cost(case: str) -> None:
    found = list(costs(case, 4_000, 2))
    assert len(found) == 2
    assert min(taken for taken, _ in found) > 0
    assert found[-1][1] > 0


def test_bounded_eight_windows_log_little_more_than_the_columns_of_one() -> None:
    """Time, card and value have 24 bytes; with the three other keys there are 48."""
    (*_, (_, one)), (*_, (_, eight)) = (list(costs(case, 40_000, 2)) for case in ("one", "eight"))
    assert one <= 0.35 * 24
    assert eight <= 1.2 * 24
    assert eight <= 0.6 * 48
