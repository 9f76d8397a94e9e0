from __future__ import annotations

from bench.windows.shared_frames import LONGEST, SHORTEST, ranges


def test_one_window_is_the_longest_of_eight() -> None:
    assert ranges(1) == [LONGEST]
    assert ranges(8)[0] == LONGEST
    assert ranges(8)[-1] == SHORTEST
    assert len(set(ranges(8))) == 8
