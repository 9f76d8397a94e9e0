from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from icestream.demo.progress import Progress, show_speed, show_time, show_watermark

Report = Callable[..., dict[str, Any]]


@pytest.fixture
def progress() -> Progress:
    return Progress()


def test_oracle_a_batch_is_counted_once(progress: Progress, report: Report) -> None:
    # a query reports late events in all, and result rows of the batch
    first = report(0, 1_000_000)
    second = report(1, 500_000, stateMemoryBytes=1 << 20, lateEvents=4)
    assert progress.absorb([first])
    assert not progress.absorb([first])
    assert progress.absorb([first, second])
    assert progress.processed == 1_500_000
    assert (progress.batches, progress.late, progress.result_rows) == (2, 4, 17_280)
    assert (progress.memory, progress.peak) == (1 << 20, 3 << 20)


def test_results_of_clean_up_count_without_a_batch(progress: Progress, report: Report) -> None:
    late = {**report(1, 0), "batchId": None}
    assert progress.absorb([report(0, 1_000_000), late])
    assert not progress.absorb([late])
    assert (progress.batches, progress.result_rows) == (1, 17_280)
    assert progress.batch_speed == 1_500_000


def test_a_watermark_is_kept_when_a_batch_has_none(progress: Progress, report: Report) -> None:
    progress.absorb([report(0, 1), report(1, 0, watermark=None)])
    assert progress.watermark == "2026-01-01T13:00:00+00:00"
    assert show_watermark(progress) == "2026-01-01 13:00:00"
    assert show_watermark(Progress()) == "none yet"


def test_speeds_and_times_are_readable() -> None:
    assert show_speed(1_620_000) == "1.62 M events/s"
    assert show_speed(950) == "950 events/s"
    assert show_time(1_767_225_600_000_000) == "2026-01-01 00:00:00"
