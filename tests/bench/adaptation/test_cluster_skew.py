from __future__ import annotations

import numpy as np

from bench.adaptation.cluster_skew import SHARDS, SkewedRun, keys_by_shard


def report(rows: int, executors: list[str]) -> dict[str, object]:
    return {"numInputRows": rows, "icestream": {"shards": {"executors": executors}}}


def test_latency_is_until_the_end_of_the_batch_with_the_files_last_event() -> None:
    """Three files; the first two are read together, then a version has no events.

    file       0     1     2
    there at  10.0  10.5  11.0
    version      1        2 (empty)   3
    ended at    12          12.5      14
    """
    run = SkewedRun([(10.0, 5), (10.5, 7), (11.0, 4)], {1: 12.0, 2: 12.5, 3: 14.0})
    run.reports = {3: report(4, ["a", "b"]), 1: report(12, ["a", "a"]), 2: report(0, ["b", "a"])}
    assert run.latencies().tolist() == [2.0, 1.5, 3.0]
    assert run.processed == 16
    assert run.moves == 3, "a to b, then both change"


def test_every_key_has_a_shard() -> None:
    found = keys_by_shard()
    assert len(found) == SHARDS
    assert len(np.unique(np.concatenate(found))) == sum(map(len, found))
