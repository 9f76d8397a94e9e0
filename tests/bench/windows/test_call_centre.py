from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.memory_files import MemoryFiles
from bench.registry import Size
from bench.windows import call_centre, call_centre_over_time
from bench.windows.call_centre import SCALES, Scale, judge, write_events
from bench.windows.call_centre_over_time import Case
from icestream.demo.call_centre.generator import AgentInteractions
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings


def figures(**raw: Any) -> dict[str, Any]:
    run = {
        "update_events_per_second": 200_000.0,
        "wrong_rows": 0,
        "compared_rows": 5_000,
        "peak_memory_bytes": 100,
        "budget_bytes": 200,
    }
    died: dict[str, Any] = {
        "died": "MemoryError",
        "reached_seconds": 10,
        "total_seconds": 90,
        "lines": [],
    }
    through: dict[str, Any] = {
        "died": None,
        "reached_seconds": 90,
        "total_seconds": 90,
        "lines": [],
    }
    over_time = {"tuples, memory only": died, "tuples, log on disk": through}
    return {"tuples": {**run, **raw}, "panes": run, "over_time": over_time}


def test_every_bar_can_be_missed() -> None:
    assert all(bar.holds for bar in judge(figures()))
    for change in (
        {"update_events_per_second": 99_000.0},
        {"wrong_rows": 1},
        {"compared_rows": 3},
        {"peak_memory_bytes": 201},
    ):
        assert not all(bar.holds for bar in judge(figures(**change)))
    survived = figures()
    survived["over_time"]["tuples, memory only"]["died"] = None
    assert not all(bar.holds for bar in judge(survived))


def test_the_full_size_is_a_day_of_raw_events_after_one_and_a_half_windows() -> None:
    full = SCALES[Size.FULL]
    assert full.window * call_centre.RATE == 86_400_000
    assert full.warm == full.window * 3 // 2
    assert full.memory == "512 MB"
    for scale in SCALES.values():
        batch = scale.file_seconds * scale.files_per_trigger
        assert scale.warm % batch == scale.measured % batch == scale.appended % batch == 0


def test_event_files_are_written_once(tmp_path: Path) -> None:
    scale = Scale(4, 2, 1, 2, 2, "8 MB", 1)
    folder = write_events(scale, tmp_path)
    names = sorted(path.name for path in folder.iterdir())
    assert names == [f"{number:06d}.parquet" for number in range(5)]
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    write_events(scale, tmp_path)
    assert before == {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@pytest.mark.parametrize("store", ["tuples", "panes"])
def test_a_log_in_memory_gives_the_rows_of_one_on_disk(tmp_path: Path, store: str) -> None:
    case = Case(store, True, 20, 60, 10, 50, 8 << 20, 64 << 20)
    counts = []
    for name, files in (("disk", None), ("memory", MemoryFiles())):
        folder = tmp_path / name
        settings = Settings(f"{folder}/checkpoint", f"{folder}/local", case.budget, shards=1)
        query = LocalQuery(case.plan, settings, files)
        stream = AgentInteractions(rate=case.rate)
        batches = [
            call_centre_over_time.batch_of(case.plan, stream, number * 500, 500)
            for number in range(6)
        ]
        counts.append([query.feed([[batch]]).num_rows for batch in batches])
        query.close()
    assert counts[0] == counts[1]
    assert sum(counts[0]) > 100
