from __future__ import annotations

from bench.adaptation.rescale import RescaleRun


def test_a_pause_is_what_the_batches_around_a_change_take_longer_than_others() -> None:
    """The first change held up the batch before it, the second the batch after it."""
    shards = (2, 2, 2, 2, 2, 2, 8, 8, 8, 3, 3)
    took = (900, 900, 900, 900, 100, 140, 210, 200, 205, 190, 160)
    run = RescaleRun(batches=list(zip(took, shards, strict=True)))
    assert run.calm == [100, 200, 160]
    assert run.pauses() == [40, 30]


def test_update_streams_are_compared_by_the_last_row_of_each_key() -> None:
    assert RescaleRun(rows=5, hashes=9).told == (5, 9)
    assert RescaleRun(rows=5, last={1: (1, 2)}).told == RescaleRun(rows=7, last={1: (1, 2)}).told
