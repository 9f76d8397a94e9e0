from __future__ import annotations

import pytest

from bench.windows.frame_cost import CASES, costs


@pytest.mark.parametrize("case", CASES)
def test_every_batch_has_a_cost(case: str) -> None:
    found = list(costs(case, 4_000, 2))
    assert len(found) == 2
    assert min(taken for taken, _ in found) > 0
    assert found[-1][1] > 0
