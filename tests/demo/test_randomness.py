from __future__ import annotations

import numpy as np

from icestream.demo.randomness import fractions, random_bits

COUNTERS = np.arange(100_000, dtype=np.uint64)


def test_oracle_a_draw_stands_alone() -> None:
    whole = random_bits(3, 1, COUNTERS)
    assert random_bits(3, 1, COUNTERS[500:501])[0] == whole[500]
    assert np.array_equal(random_bits(3, 1, COUNTERS[::-1]), whole[::-1])


def test_seeds_and_purposes_do_not_resemble_each_other() -> None:
    draws = [
        fractions(random_bits(seed, purpose, COUNTERS)) for seed in (1, 2) for purpose in (1, 2)
    ]
    for place, one in enumerate(draws):
        assert abs(one.mean() - 0.5) < 0.005
        for other in draws[:place]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.02


def test_fractions_lie_inside_the_unit_interval() -> None:
    ends = np.array([0, 2**16 - 1], dtype=np.uint16)
    lowest, highest = fractions(ends)
    assert 0 < lowest < highest < 1
