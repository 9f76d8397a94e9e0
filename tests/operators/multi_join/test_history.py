from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from icestream.core.times import INFINITY
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.testing.multi_join_oracle import events_of
from icestream.testing.multi_join_space import JoinSpace, sent

X = pa.schema([("x", pa.int64())])
SPEC = MultiJoinSpec(2, (X, X), ((0, "x", "a"), (1, "x", "b")), 4)


def play(space: JoinSpace, version: int) -> None:
    with space.version() as join:
        for port in range(2):
            rows = [(2 * n, version, INFINITY, (version,)) for n in range(6)]
            events_of(join.on_changes(port, sent(X, rows)))
        if version % 3 == 0:
            join.spill(np.array([version % 4]))


def test_a_snapshot_stands_without_what_was_before(tmp_path: Path) -> None:
    """A restore needs no segment of snapshots or events older than the last snapshot."""
    space = JoinSpace(str(tmp_path), SPEC)
    told = []
    for version in range(12):
        space.snapshot = version in (5, 9)
        play(space, version)
        space.lose_arena()
        with space.version() as join:
            told.append((join.generations().tolist(), join.sizes().tolist()))
            assert join.owes_since(99) in (1, 99)
    counts = [sum(each[0]) for each in told]
    assert counts == sorted(counts)
    assert counts[-1] == 4


def test_a_smaller_quota_spills_what_comes_back(tmp_path: Path) -> None:
    """What does not fit any more has left memory after a restore; its results are still owed."""
    space = JoinSpace(str(tmp_path), SPEC, quota=1 << 22)
    rows = [(n, 0, INFINITY, (n,)) for n in range(3000)]
    with space.version() as join:
        assert list(join.on_changes(0, sent(X, rows))) == []
    space.lose_arena()
    space.quota = 1 << 17
    with space.version() as join:
        assert join.statistics["forced_spills"] > 0
        made = events_of(join.on_changes(1, sent(X, rows[:100])))
    assert space.peak <= 1 << 22
    space.lose_arena()
    with space.version() as join:
        made += events_of(join.clean_up())
    assert sum(made.values()) == 100
    assert max(made.values()) == 1
