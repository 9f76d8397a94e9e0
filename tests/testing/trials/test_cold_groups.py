from __future__ import annotations

import numpy as np
import pytest

from icestream.state.cold.manager import Manager
from icestream.testing.trials.cold_groups import PlainSubQuery, work, zipf


def test_accesses_are_drawn_alike_and_fall_off_with_the_rank() -> None:
    one, other = (list(zipf(3, 100, 20, 500)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(one, other, strict=True))
    counts = np.sort(np.bincount(np.concatenate(one), minlength=100))[::-1]
    assert counts[0] == pytest.approx(10_000 / 5.19, rel=0.1)
    assert counts[0] > 1.5 * counts[1] > 1.5 * counts[3]


def test_the_hot_set_moves_on() -> None:
    first, *_, last = zipf(3, 100, 50, 2000, drift=1)
    hottest = [int(np.bincount(chunk).argmax()) for chunk in (first, last)]
    assert hottest[0] != hottest[1]


def test_groups_read_back_are_counted_once_and_memory_is_bounded() -> None:
    query = PlainSubQuery("q", [10] * 6)
    rounds = [np.array(slots) for slots in ([0, 1, 0], [2, 3], [4, 5], [0, 0], [5])]
    manager = Manager([query])
    assert work(manager, [query], {"q": iter(rounds)}, limit=40) == {"q": 1}
    assert query.bytes_held() <= 40


def test_a_pinned_group_that_is_told_to_leave_is_noticed() -> None:
    query = PlainSubQuery("q", [10])
    query.hot[:] = query.pinned[:] = True
    with pytest.raises(AssertionError, match="pinned"):
        query.evict(np.array([0]))
