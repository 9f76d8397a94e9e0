from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from icestream.core.arrays import Table
from icestream.core.errors import DamageError
from icestream.core.times import INFINITY
from icestream.operators.multi_join.clean_up import CleanUp, parts_of
from icestream.operators.multi_join.spec import MultiJoinSpec, partitions_of
from icestream.state.log.format import Record
from icestream.state.log.reader import Log
from tests.fixtures.multi_join_space import JoinSpace, identity, sent

NUMBERS = pa.schema([("x", pa.int64())])
PARTITIONS = 64


def spilled(folder: Path, versions: int = 6) -> JoinSpace:
    """Return a join whose even partitions owe results: of every key in every two versions."""
    spec = MultiJoinSpec(0, (NUMBERS,) * 2, ((0, "x", "a"), (1, "x", "b")), PARTITIONS)
    space = JoinSpace(str(folder), spec)
    for version in range(versions):
        with space.version() as join:
            join.spill(np.arange(0, PARTITIONS, 2))
            for port in range(2):
                rows = sent(NUMBERS, [(key, 0, INFINITY, (version,)) for key in range(0, 400, 2)])
                assert sum(made.num_rows for made in join.on_changes(port, rows)) >= 0
    return space


@pytest.mark.parametrize(("first", "last"), [(0, 2**64 - 1), (7, 8), (3, 5)])
@pytest.mark.parametrize("parts", [1.5, 2, 7])
def test_parts_follow_each_other(first: int, last: int, parts: float) -> None:
    cut = parts_of(first, last, parts)
    assert len(cut) >= 2
    assert cut[0][0] == first
    assert cut[-1][1] == last
    assert all(low <= high for low, high in cut)
    assert all(a[1] + 1 == b[0] for a, b in pairwise(cut))


def test_bounded_scattered_partitions_are_read_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second partition owes, and all together fit: each record is read once."""
    space = spilled(tmp_path)
    read: list[int] = []
    read_many = Log.read_many

    def noted(log: Log, markers: npt.NDArray[np.uint64]) -> Iterator[Record]:
        for record in read_many(log, markers):
            read.append(record.marker)
            yield record

    monkeypatch.setattr(Log, "read_many", noted)
    with space.version() as join:
        assert join.dirty().sum() > PARTITIONS // 4
        records = len(join._generations.records)
        late = sum(made.num_rows for made in join.clean_up(fill=0.0))
    homes = partitions_of(
        np.array([identity(key)[0] for key in range(0, 400, 2)], dtype=np.uint64), PARTITIONS
    )
    assert late == 6 * 5 * int((homes % 2 == 0).sum())
    assert len(read) == len(set(read)) == records


def test_bounded_a_key_that_does_not_fit_is_soon_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range around it is not halved bit by bit: what was read tells where it is."""
    wide = pa.schema([("x", pa.int64()), ("wide", pa.binary())])
    spec = MultiJoinSpec(0, (wide, NUMBERS), ((0, "x", "a"), (1, "x", "b")), 4)
    space = JoinSpace(str(tmp_path), spec, quota=1 << 18)
    for version in range(8):
        with space.version() as join:
            join.spill(np.arange(4))
            rows = [
                (key, 0, INFINITY, (version, b"w" * 900)) for key in [*range(0, 80, 2), *[6] * 60]
            ]
            few = sent(NUMBERS, [(key, 0, INFINITY, (version,)) for key in range(0, 80, 2)])
            made = [*join.on_changes(0, sent(wide, rows)), *join.on_changes(1, few)]
            assert sum(each.num_rows for each in made) >= 100
    tried: list[tuple[int, int]] = []
    load = CleanUp._load

    def noted(cleaning: CleanUp, first: int, last: int, records: Table) -> None:
        tried.append((first, last))
        load(cleaning, first, last, records)

    monkeypatch.setattr(CleanUp, "_load", noted)
    with space.version() as join:
        join.spill(np.arange(4))
        late = sum(made.num_rows for made in join.clean_up())
        early = sum(join.statistics[each] for each in ("early", "forced_spills"))
    busy = identity(6)[0]
    assert early == 0
    assert late == 8 * 7 * 100
    assert (busy, busy) in tried
    assert sum(first < last for first, last in tried) < 20
    assert space.peak <= space.quota


@pytest.mark.parametrize("word", [0, 12 << 32], ids=["empty", "of another schema"])
def test_a_record_that_holds_no_rows_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: int
) -> None:
    """A row without an end, and one that swallows the next but one."""
    space = spilled(tmp_path)
    read_many = Log.read_many

    def damaged(log: Log, markers: npt.NDArray[np.uint64]) -> Iterator[Record]:
        for record in read_many(log, markers):
            words = np.frombuffer(record.payload, dtype=np.int64).copy()
            words[4] = word
            yield replace(record, payload=memoryview(words.tobytes()))

    with space.version() as join:
        monkeypatch.setattr(Log, "read_many", damaged)
        with pytest.raises(DamageError, match="does not hold rows of a join"):
            list(join.clean_up())
        monkeypatch.undo()
