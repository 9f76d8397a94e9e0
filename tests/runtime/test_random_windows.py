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
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.times import FURTHEST, LONGEST
from icestream.operators.frames import operator as frames
from icestream.operators.frames import tuples
from icestream.plan.nodes.queries import WindowKind
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session
from icestream.runtime.driver import Delivery
from icestream.runtime.local import LocalQuery, Splits
from tests.fixtures.plans import open_query, window_plan
from tests.oracles.arrivals import Row
from tests.suites.dataflow_conformance import open_dataflow
from tests.suites.random_windows import SECOND, Dice, RandomCase, draw, oracles, wrong_rows
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
    slow = oracles(case)
    wrong: list[str] = []
    shards, small = dice.between(1, 4), dice.chance(0.6)
    restarts = dice.one((0.0, 0.4))

    def compare(
        query: LocalQuery, deliveries: Sequence[Delivery], expected: list[list[Row]]
    ) -> None:
        for number, view in enumerate(case.plan.views):
            found = wrong_rows(view, query.rows(deliveries, number), expected[number])
            wrong.extend(f"seed {seed}, {view}: {each}" for each in found[:3])

    with _small(really=small), tempfile.TemporaryDirectory() as folder:
        features = case.features

        def opened() -> LocalQuery:
            if features is not None:
                return open_dataflow(features, Path(folder), shards=shards)
            return open_query(case.plan, folder, shards=shards)

        query = opened()
        for batch in _batches(dice, case):
            splits = _split(dice, batch if features is None else case.batch_of_features(batch))
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


ENDS: tuple[WindowKind, ...] = (
    Windows(10 * SECOND, 2 * SECOND, -SECOND),
    Windows(LONGEST, LONGEST // 4),
    Cumulative(10 * SECOND, 2 * SECOND),
    Frame(range=LONGEST),
    Frame(rows=3, slide=LONGEST),
    Session(LONGEST),
)


@pytest.mark.parametrize("windows", ENDS, ids=repr)
def test_oracle_windows_reach_to_both_ends_of_the_calendar(
    tmp_path: Path, windows: WindowKind
) -> None:
    plan = window_plan(windows=windows, slack=LONGEST)
    case = RandomCase(0, plan, (), ())
    (slow,) = oracles(case)
    query = open_query(plan, str(tmp_path))
    ends = [-FURTHEST, 1 - FURTHEST, -5, 0, 7, FURTHEST - 1, FURTHEST]
    for times in (ends[:3], ends[3:], ends[::-1]):
        count = len(times)
        columns = [
            pa.array(times).cast(plan.time),
            pa.array([0] * count, pa.int32()),
            pa.array([1] * count),
            pa.array(np.arange(count) / 4),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=plan.batch_schema)
        found = query.feed([[batch]])
        assert not wrong_rows(plan.views[0], found, slow.feed([[batch]]))
    assert not wrong_rows(plan.views[0], query.flush(), slow.flush())
    query.close()


def test_the_same_seed_draws_the_same_case() -> None:
    assert draw(5) == draw(5)


def test_oracle_some_random_queries() -> None:
    _check_all(range(25))


def test_oracle_a_snapshot_is_read_as_of_its_version() -> None:
    # raw events of the batch that follows have groups that the snapshot does not know
    _check_all(range(917_162, 917_163))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(50))
def test_oracle_five_thousand_random_queries(part: int) -> None:
    _check_all(range(25 + 100 * part, 125 + 100 * part))
