"""Segments of a join are merged: what is needed is written again, in few large records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from icestream.core.times import INFINITY
from icestream.operators.multi_join import merging
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.state.log.format import Record
from icestream.state.log.reader import Log
from tests.fixtures.multi_join_space import JoinSpace, sent
from tests.oracles.lifetimes import Bag
from tests.oracles.multi_join import events_of, joined

NUMBERS = pa.schema([("n", pa.int64())])
SPEC = MultiJoinSpec(0, (NUMBERS, NUMBERS), ((0, "n", "n0"), (1, "n", "n1")), 8)
ROW_BYTES = 56


def test_bounded_lasting_rows_keep_no_others_on_the_log(tmp_path: Path) -> None:
    """One stream lasts and has a row a version; the other has many, which soon end."""
    space = JoinSpace(str(tmp_path), SPEC, quota=1 << 21)
    rng, short, versions = np.random.default_rng(0), 200, 120
    found = []
    for version in range(versions):
        with space.version(10 * version) as join:
            begin = 10 * version
            lasting = [(int(rng.integers(0, 500)), begin, INFINITY, (version,))]
            ending = [(int(key), begin, begin + 30, (1,)) for key in rng.integers(0, 500, short)]
            list(join.on_changes(0, sent(NUMBERS, lasting)))
            list(join.on_changes(1, sent(NUMBERS, ending)))
            if version % 10 == 5:
                join.spill(np.arange(8))
            if version % 10 == 9:
                list(join.clean_up())
        found.append(space.log_bytes)
    live = ROW_BYTES * (versions + 4 * short)
    logged = ROW_BYTES * versions * short
    assert max(found[60:]) < 20 * ROW_BYTES * short + 3 * live < logged / 2


@pytest.mark.parametrize("few", [1, 3])
def test_oracle_generations_of_merged_segments(
    few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs on the log are out of order where some segments are merged and others are not."""
    monkeypatch.setattr(merging, "FEW", few)
    space = JoinSpace(str(tmp_path), SPEC, quota=1 << 21)
    rng = np.random.default_rng(few)
    made: Bag = Counter()
    came: list[Bag] = [Counter(), Counter()]
    for version in range(40):
        space.snapshot = bool(rng.random() < 0.3)
        with space.version(10 * version) as join:
            for port in range(2):
                # large segments are not merged with small ones
                count = int(rng.choice([4, 100]))
                ends = rng.choice([10 * version + 60, INFINITY], count).tolist()
                keys = rng.integers(0, 200, count).tolist()
                rows = [
                    (key, 10 * version, end, (1000 * version + n,))
                    for n, (key, end) in enumerate(zip(keys, ends, strict=True))
                ]
                changes = sent(NUMBERS, rows)
                came[port] += events_of([changes])
                made += events_of(join.on_changes(port, changes))
            if rng.random() < 0.5:
                join.spill(np.flatnonzero(rng.random(8) < 0.6))
            if rng.random() < 0.1:
                made += events_of(join.clean_up(rng.integers(0, 8, 3)))
        if rng.random() < 0.2:
            space.lose_arena()
    with space.version() as join:
        made += events_of(join.clean_up(last=True))
    assert made == joined(SPEC, came, None)


def test_bounded_the_index_of_tiny_batches(tmp_path: Path) -> None:
    """A join forever has two small records for each version, of which few are left."""
    space = JoinSpace(str(tmp_path), SPEC, quota=1 << 21)
    rng, versions = np.random.default_rng(1), 400
    for version in range(versions):
        with space.version() as join:
            for port in range(2):
                rows = [(int(key), 0, INFINITY, (version,)) for key in rng.integers(0, 5000, 3)]
                list(join.on_changes(port, sent(NUMBERS, rows)))
            if version % 50 == 49:
                join.spill(np.arange(8))
                list(join.clean_up())
    with space.version() as join:
        assert join.statistics["index_bytes"] < 64 * 2 * versions / 5


def test_bounded_clean_up_reads_the_log_of_its_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sixteenth of the partitions is read from a small part of the log, after many versions."""
    spec = replace(SPEC, partitions=64)
    space, rng = JoinSpace(str(tmp_path), spec, quota=1 << 24), np.random.default_rng(2)
    for version in range(64):
        space.snapshot = version % 8 == 7
        with space.version() as join:
            if version % 16 == 8:
                join.spill(np.arange(64))
            for port in range(2):
                keys = rng.integers(0, 1 << 40, 500).tolist()
                rows = [(key, 0, INFINITY, (version,)) for key in keys]
                list(join.on_changes(port, sent(NUMBERS, rows)))
    space.snapshot = False
    read: list[int] = []
    read_many = Log.read_many

    def counted(log: Log, markers: npt.NDArray[np.uint64]) -> Iterator[Record]:
        for record in read_many(log, markers):
            read.append(len(record.payload))
            yield record

    monkeypatch.setattr(Log, "read_many", counted)
    with space.version() as join:
        list(join.clean_up(np.arange(4), fill=0.0))
    assert 0 < sum(read) < space.log_bytes / 5


@pytest.mark.parametrize("lifetime", [120, INFINITY])
def test_bounded_index_and_segments_of_a_join_that_stays_on(lifetime: int, tmp_path: Path) -> None:
    """Records, cuts and segments follow what is needed, not the number of versions."""
    space, rng = JoinSpace(str(tmp_path), SPEC, quota=1 << 21), np.random.default_rng(3)
    index, segments = [], []
    for version in range(180):
        begin = 10 * version
        with space.version(begin) as join:
            if version % 3 == 0:
                join.spill(rng.permutation(8)[:4])
            for port in range(2):
                ends = min(begin + lifetime, INFINITY)
                rows = [(int(key), begin, ends, (1,)) for key in rng.integers(0, 400, 60)]
                list(join.on_changes(port, sent(NUMBERS, rows)))
            list(join.clean_up(np.array([version % 8])))
            index.append(join.statistics["index_bytes"])
            segments.append(len(join._generations.segments))
    assert max(segments[120:]) <= 1.2 * max(segments[60:120])
    if lifetime < INFINITY:
        assert max(index[120:]) <= 1.2 * max(index[60:120])
    else:
        assert index[-1] < space.log_bytes / 20
