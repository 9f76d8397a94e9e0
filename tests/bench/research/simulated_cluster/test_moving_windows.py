from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench.research.migration import Move, Way
from bench.research.simulated_cluster.job import RunningJob, WindowJob
from bench.research.simulated_cluster.moving_windows import Moved
from bench.research.split_combine import ComponentShape
from icestream.core.errors import DefinitionError
from icestream.operators.protocol import Emitted
from icestream.plan.windows.grid import Windows
from tests.fixtures.plans import QuickFiles
from tests.oracles.window_answers import Answers, answers
from tests.suites.window_conformance import small_sizes

GROUPS, NODES, KEYS = 4, 3, 60
STEP, BATCHES = 3, 18
WINDOWS = (Windows(12, 2), Windows(8, 8))
JOB = WindowJob(WINDOWS, pane=2, key_groups=GROUPS)


def batches(seed: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Rows of three instants at a time, in disorder of one instant; and the watermark after."""
    dice = np.random.default_rng(seed)
    for number in range(BATCHES):
        count = int(dice.integers(0, 80))
        times = dice.integers(STEP * number, STEP * (number + 1) + 1, count)
        columns = {
            "time": times,
            "k0": dice.integers(0, KEYS, count),
            "x0": dice.integers(-(1 << 40), 1 << 40, count),
        }
        yield pa.RecordBatch.from_pydict(columns), STEP * (number + 1)
    nothing = np.empty(0, dtype=np.int64)
    yield pa.RecordBatch.from_pydict({"time": nothing, "k0": nothing, "x0": nothing}), 10_000


def wanted(seed: int) -> Answers:
    return answers((rows for rows, _ in batches(seed)), WINDOWS)


def take(emitted: list[Emitted], found: Answers) -> None:
    for view, rows in emitted:
        starts = rows.column("window").field("start").cast(pa.int64()).to_pylist()
        answers = zip(
            starts,
            *(rows.column(name).to_pylist() for name in ("key", "n", "total", "top")),
            strict=True,
        )
        for start, key, count, total, top in answers:
            assert (view, start, key) not in found, "a window was emitted twice"
            found[view, start, key] = (count, total, top)


def opened(folder: Path, shape: ComponentShape, *, one_disk: bool = True) -> RunningJob:
    places = [group % NODES for group in range(GROUPS)]
    homes = [(group + 1) % NODES for group in range(GROUPS)]
    return RunningJob(
        JOB, shape, str(folder), QuickFiles(), places=places, homes=homes, one_disk=one_disk
    )


WAYS = {
    ComponentShape.SPLIT: tuple(Way),
    ComponentShape.COMBINED: (Way.SMOOTH, Way.DISRUPTIVE, Way.HANDOVER),
}


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))]
)
@pytest.mark.parametrize("shape", ComponentShape)
def test_oracle_rows_are_those_of_an_undisturbed_run(
    tmp_path: Path, shape: ComponentShape, seed: int
) -> None:
    dice = np.random.default_rng(100 + seed)
    job = opened(tmp_path, shape, one_disk=seed % 2 == 0)
    found: Answers = {}
    moved: list[Moved] = []
    ways = itertools.cycle(WAYS[shape])
    for rows, watermark in batches(seed):
        take(job.feed(rows, watermark), found)
        for group in range(GROUPS):
            if dice.random() < 0.4:
                moved += job.move([Move(group, int(dice.integers(NODES)), next(ways))])
    assert found == wanted(seed)
    assert {each.way for each in moved} == {*WAYS[shape]}


@pytest.mark.parametrize("shape", ComponentShape)
def test_a_source_is_empty_in_the_end(tmp_path: Path, shape: ComponentShape) -> None:
    way = WAYS[shape][0]
    job = opened(tmp_path, shape)
    component = job.computing or job.windows
    for number, (rows, watermark) in enumerate(batches(3)):
        job.feed(rows, watermark)
        if number == 10:
            job.move([Move(0, 2, way)])
            assert component.held(0, 0) is not None
            assert component.held(0, 2) is not None
        if number == 16:
            assert component.held(0, 0) is None
            assert component.moving == 0
    assert component.places[0] == 2


def test_a_copy_takes_every_byte_along(tmp_path: Path) -> None:
    job = opened(tmp_path, ComponentShape.COMBINED)
    for number, (rows, watermark) in enumerate(batches(4)):
        job.feed(rows, watermark)
        if number == 12:
            before = job.windows.held(0, 0)
            assert before is not None
            files = before.files
            (moved,) = job.move([Move(0, 1, Way.DISRUPTIVE)])
            after = job.windows.held(0, 1)
            assert after is not None
            assert (after.files, after.bytes) == (files + 1, moved.bytes)  # a header of the arena
            assert moved.bytes > 0
            assert before.files == 0


def test_bounded_files_of_a_group(tmp_path: Path) -> None:
    job = opened(tmp_path, ComponentShape.COMBINED)
    counts = []
    with small_sizes(snapshot=2):
        for turn in range(2):
            for rows, watermark in [*batches(5)][:-1]:
                later = turn * STEP * BATCHES
                times = pa.array(rows.column(0).to_numpy() + later)
                job.feed(rows.set_column(0, "time", times), watermark + later)
                held = job.windows.held(0, 0)
                counts.append(held.files if held is not None else 0)
    assert max(counts[BATCHES:]) <= max(counts[:BATCHES]) + 2


def test_groups_of_windows_that_nobody_consolidates_do_not_move_instantly(tmp_path: Path) -> None:
    job = opened(tmp_path, ComponentShape.COMBINED)
    with pytest.raises(DefinitionError, match="hand them over"):
        job.move([Move(0, 1, Way.INSTANT)])
