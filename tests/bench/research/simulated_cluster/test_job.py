from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench.research.migration import Move, Way
from bench.research.simulated_cluster.job import RunningJob, WindowJob
from bench.research.split_combine import ComponentShape
from icestream.operators.protocol import Emitted
from icestream.plan.windows.grid import Windows
from tests.fixtures.plans import QuickFiles
from tests.oracles.window_answers import Answers, answers

GROUPS, KEYS, BATCHES, STEP = 3, 40, 20, 3
WINDOWS = (Windows(12, 4), Windows(6, 6))
JOB = WindowJob(WINDOWS, pane=2, key_groups=GROUPS)


def batches(seed: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    dice = np.random.default_rng(seed)
    for number in range(BATCHES):
        count = 0 if number > BATCHES - 6 else 50
        columns = {
            "time": dice.integers(STEP * number, STEP * (number + 1), count),
            "k0": dice.integers(0, KEYS, count),
            "x0": dice.integers(-(1 << 45), 1 << 45, count),
        }
        yield pa.RecordBatch.from_pydict(columns), STEP * (number + 1)


def wanted(seed: int) -> Answers:
    return answers((rows for rows, _ in batches(seed)), WINDOWS)


def take(emitted: list[Emitted], found: Answers) -> None:
    for view, rows in emitted:
        for each in rows.to_pylist():
            place = (view, _micros(rows, each), each["key"])
            assert place not in found, "a window was emitted twice"
            found[place] = (each["n"], each["total"], each["top"])


def _micros(rows: pa.RecordBatch, row: dict[str, dict[str, object]]) -> int:
    kind = rows.schema.field("window").type.field("start").type
    value: int = pa.scalar(row["window"]["start"], kind).cast(pa.int64()).as_py()
    return value


def run(
    folder: Path, shape: ComponentShape, between: Callable[[RunningJob, int], None]
) -> tuple[Answers, RunningJob]:
    job = RunningJob(JOB, shape, str(folder), QuickFiles(), places=[0] * GROUPS, homes=[1] * GROUPS)
    found: Answers = {}
    for number, (rows, watermark) in enumerate(batches(7)):
        take(job.feed(rows, watermark), found)
        between(job, number)
    return found, job


@pytest.mark.parametrize("shape", ComponentShape)
def test_oracle_both_shapes_emit_the_same_rows(tmp_path: Path, shape: ComponentShape) -> None:
    found, job = run(tmp_path, shape, lambda *_: None)
    assert found == wanted(7)
    assert (job.sent > 0) is (shape is ComponentShape.SPLIT)


@pytest.mark.parametrize("way", [Way.SMOOTH, Way.DISRUPTIVE, Way.HANDOVER])
def test_oracle_split_and_combine_change_no_row(tmp_path: Path, way: Way) -> None:
    moved = []

    def between(job: RunningJob, number: int) -> None:
        if number == 3:
            job.split()
        if number == 4:
            job.move([Move(1, 1, Way.INSTANT), Move(2, 2, Way.INSTANT)])
        if number == 8:
            moved.extend(job.combine(way))

    found, job = run(tmp_path, ComponentShape.COMBINED, between)
    assert found == wanted(7)
    assert job.shape is ComponentShape.COMBINED
    # windows stayed with node 0 when panes of groups 1 and 2 moved
    assert [each.group for each in moved] == ([] if way is Way.SMOOTH else [1, 2])
    assert job.places == (0, 1, 2)


def test_smooth_combining_takes_the_longest_window(tmp_path: Path) -> None:
    seen = []

    def between(job: RunningJob, number: int) -> None:
        if number == 5:
            job.combine(Way.SMOOTH)
        seen.append(job.combining)

    run(tmp_path, ComponentShape.SPLIT, between)
    # batch 5 ends at 18; windows that began by then end by 30
    assert [number for number, each in enumerate(seen) if each] == [5, 6, 7, 8]
