from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa

from icestream.core.times import INFINITY
from icestream.operators.multi_join.recovery import (
    EVENTS,
    NUMBERS,
    PARTITIONS,
    RECORDS,
    SEGMENTS,
)
from icestream.operators.multi_join.spec import MultiJoinSpec, partitions_of
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import BASE
from tests.fixtures.multi_join_space import JoinSpace, identity, sent
from tests.oracles.multi_join import events_of

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
    reported = []
    for version in range(12):
        space.snapshot = version in (5, 9)
        play(space, version)
        space.lose_arena()
        with space.version() as join:
            reported.append((join.generations().tolist(), join.sizes().tolist()))
            assert join.owes_since(99) in (1, 99)
    counts = [sum(each[0]) for each in reported]
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


def kinds(space: JoinSpace, version: int, lifetime: str) -> list[tuple[int, int, list[int]]]:
    """Return kind, group and words of the records that a version wrote."""
    found = []
    for name, info in space.history[version - 1].segments:
        if name == lifetime:
            with closing(SegmentReader(space.files, f"{space.folder}/{info.name}")) as reader:
                found += [(r.synopsis, r.group, r.rows, bytes(r.payload)) for r in reader.scan()]
    return [
        (kind, group if lifetime == "joined" else rows, _words(kind, data))
        for kind, group, rows, data in found
    ]


def _words(kind: int, data: bytes) -> list[int]:
    return [] if kind == NUMBERS else np.frombuffer(data, dtype=np.int64).tolist()


def test_the_worked_example_of_the_format(tmp_path: Path) -> None:
    """docs/formats/joins.md."""
    space = JoinSpace(str(tmp_path), SPEC, snapshot=False)
    of = {int(partitions_of(np.array([identity(n)[0]], np.uint64), 4)[0]): n for n in range(64)}
    with space.version() as join:
        for port in range(2):
            rows = [(of[partition], 1, INFINITY, (partition,)) for partition in (0, 2)]
            events_of(join.on_changes(port, sent(X, rows)))
    with space.version() as join:
        join.spill(np.array([2]))
        events_of(join.on_changes(0, sent(X, [(of[2], 2, INFINITY, (9,))])))
    with space.version() as join:
        assert sum(events_of(join.clean_up()).values()) == 1
    space.snapshot = True
    with space.version():
        pass
    assert [(kind, group) for kind, group, _ in kinds(space, 1, "joined")] == [(0, 1), (1, 1)]
    assert [(kind, group) for kind, group, _ in kinds(space, 2, "joined")] == [(0, 2)]
    # events of versions before the snapshot are gone with it
    written = {kind: (rows, words) for kind, rows, words in kinds(space, 4, BASE)}
    assert {kind: rows for kind, (rows, _) in written.items()} == {
        NUMBERS: 0, PARTITIONS: 4, RECORDS: 3, SEGMENTS: 2,
    }  # fmt: skip


def test_what_happened_to_partitions_is_logged_in_order(tmp_path: Path) -> None:
    space = JoinSpace(str(tmp_path), SPEC, snapshot=False)
    of = {int(partitions_of(np.array([identity(n)[0]], np.uint64), 4)[0]): n for n in range(64)}
    row = [(of[2], 1, INFINITY, (1,))]
    with space.version() as join:
        events_of(join.on_changes(1, sent(X, row)))
    with space.version() as join:
        join.spill(np.array([2]))
        events_of(join.on_changes(0, sent(X, row)))
    with space.version() as join:
        events_of(join.clean_up())
    assert kinds(space, 1, BASE) == []
    assert kinds(space, 2, BASE) == [(EVENTS, 1, [2, 1, 0])]
    # cleaned up at epoch 2, and back in memory
    assert kinds(space, 3, BASE) == [(EVENTS, 2, [2, 2, 1, 2, 2, 3])]
