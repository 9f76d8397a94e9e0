"""The rate of a streaming query once it is warm, from its progress reports.

Idea: the first batches pay for class loading, compilation and empty caches; a query pays that once,
so they are left out, and so are batches without rows. The rate is rows over the time of whole
triggers, including planning and commit.

Invariants:
1. Skipped and empty batches do not count (`test_skipped_and_empty_batches_do_not_count`).
2. Too few batches give no rate rather than a cold one (`test_too_few_batches_give_no_rate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def steady_rate(progress: Iterable[Mapping[str, Any]], skip: int) -> float | None:
    """Events per second over all batches with rows after the first `skip` of them."""
    reports = {report["batchId"]: report for report in progress if report["numInputRows"]}
    warm = [reports[number] for number in sorted(reports)][skip:]
    spent = sum(report["durationMs"]["triggerExecution"] for report in warm)
    return 1_000 * sum(report["numInputRows"] for report in warm) / spent if spent else None
