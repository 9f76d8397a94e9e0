"""Random queries in one process beside slow and obvious versions of them.

A case draws how parts of its events become batches and splits, restarts after which arenas may be
gone, the number of shards, a small budget and small sizes of everything on the log.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.frames import operator as frames
from icestream.operators.frames import tuples
from icestream.runtime.driver import Delivery
from icestream.runtime.local import LocalQuery, Splits
from tests.fixtures.plans import open_query
from tests.suites.random_windows import Dice, RandomCase, draw, oracles, wrong_rows
from tests.suites.window_conformance import small_sizes


@contextmanager
def _small(*, really: bool) -> Iterator[None]:
    """Let little data do what much data does."""
    with ExitStack() as stack:
        if really:
            stack.enter_context(small_sizes())
            for module in (frames, tuples):
                stack.enter_context(mock.patch.object(module, "BLOCK_BYTES", 1024))
        yield


def _split(dice: Dice, events: pa.Table) -> Splits:
    """Cut a batch into splits, each of several record batches."""
    cuts = np.sort(dice.numbers.integers(0, events.num_rows + 1, dice.between(0, 2))).tolist()
    bounds = [0, *cuts, events.num_rows]
    size = dice.one((7, 1000))
    return [
        events.slice(first, last - first).combine_chunks().to_batches(max_chunksize=size)
        for first, last in pairwise(bounds)
    ]


def _batches(dice: Dice, case: RandomCase) -> list[pa.Table]:
    """Join parts to batches, some of them empty."""
    found: list[pa.Table] = []
    waiting: list[int] = []
    for number in range(len(case.parts)):
        waiting.append(number)
        if dice.chance(0.7):
            found.append(case.batch(waiting))
            waiting = []
        if dice.chance(0.1):
            found.append(case.batch([]))
    return [*found, case.batch(waiting)]


def _check(seed: int) -> list[str]:
    """Run one case; return what is wrong."""
    case, dice = draw(seed), Dice(seed, 1)
    slow, wrong = oracles(case), []
    shards, small = dice.between(1, 4), dice.chance(0.6)
    restarts = dice.one((0.0, 0.4))

    def compare(query: LocalQuery, deliveries: Sequence[Delivery], expected: list[list]) -> None:
        for number, view in enumerate(case.plan.views):
            found = wrong_rows(view, query.rows(deliveries, number), expected[number])
            wrong.extend(f"seed {seed}, {view}: {each}" for each in found[:3])

    with _small(really=small), tempfile.TemporaryDirectory() as folder:

        def opened() -> LocalQuery:
            return open_query(case.plan, folder, shards=shards)

        query = opened()
        for batch in _batches(dice, case):
            splits = _split(dice, batch)
            expected = [each.feed([batch.to_batches()]) for each in slow]
            compare(query, query.driver.batch(query.next_batch, splits), expected)
            if dice.chance(restarts):
                query.close()
                if dice.chance(0.5):
                    shutil.rmtree(f"{folder}/local", ignore_errors=True)
                query = opened()
        compare(query, query.driver.flush(), [each.flush() for each in slow])
        query.close()
    return wrong


def _check_all(seeds: range) -> None:
    wrong = [each for seed in seeds for each in _check(seed)]
    assert not wrong, wrong[:20]


def test_the_same_seed_draws_the_same_case() -> None:
    assert draw(5) == draw(5)


def test_oracle_some_random_queries() -> None:
    _check_all(range(25))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(50))
def test_oracle_five_thousand_random_queries(part: int) -> None:
    _check_all(range(25 + 100 * part, 125 + 100 * part))
