from __future__ import annotations

import json

import numpy as np
import pytest

from icestream.kernels.queue.staleness import BINS, PROFILE, bin_edges
from icestream.operators.latest.report import ServingReport, StalenessIntegral, combined_report


def ramps(rows: list[tuple[float, float]], extent: float) -> StalenessIntegral:
    """Staleness of ramps from one value to another."""
    profile = np.zeros((BINS, PROFILE))
    for begin, end in rows:
        for value, sign in ((end, 1.0), (begin, -1.0)):
            place = int(np.searchsorted(bin_edges(), value, side="right"))
            profile[place] += sign, sign * value
    area = sum((end - begin) * (end + begin) / 2 for begin, end in rows)
    return StalenessIntegral.of(area, extent, int(max(end for _, end in rows)), profile)


def test_oracle_shards_together_tell_what_one_would() -> None:
    one = ServingReport(served=3, waiting=1, keys=2, serving=50, stale=ramps([(0, 1000)], 2000))
    other = ServingReport(
        served=4, waiting=2, keys=3, serving=70, stale=ramps([(0, 400), (100, 300)], 3000)
    )
    both = combined_report(
        [ServingReport.from_json(one.to_json()), ServingReport.from_json(other.to_json())]
    )
    whole = ramps([(0, 1000), (0, 400), (100, 300)], 5000)
    assert (both.served, both.waiting, both.keys, both.serving) == (7, 3, 5, 70)
    assert both.stale.average == pytest.approx(whole.average)
    assert both.stale.quantile(0.9) == pytest.approx(whole.quantile(0.9))
    assert both.stale.quantile(0.5) == 0
    json.dumps(both.shown())
