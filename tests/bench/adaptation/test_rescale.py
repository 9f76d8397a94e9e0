from __future__ import annotations

from bench.adaptation.rescale import RescaleRun


def test_batches_after_a_rescale_are_told_from_the_others() -> None:
    tasks = (2, 2, 2, 2, 2, 8, 8, 3)
    run = RescaleRun(batches=[(100 + place, count) for place, count in enumerate(tasks)])
    assert run.rescaled == [105, 107]
    assert run.calm == [106]


def test_update_streams_are_compared_by_the_last_row_of_each_key() -> None:
    assert RescaleRun(rows=5, hashes=9).told == (5, 9)
    assert RescaleRun(rows=5, last={1: (1, 2)}).told == RescaleRun(rows=7, last={1: (1, 2)}).told
