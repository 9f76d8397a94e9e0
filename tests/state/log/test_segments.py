from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.state.arena import PAGE, Arena
from icestream.state.budget import Budget, Refused
from icestream.state.log.format import SegmentInfo
from icestream.state.log.segments import SegmentTable, segment_name


def segment(ordinal: int, expiry: int = 5, checksum: int = 2**64 - 1) -> SegmentInfo:
    name = segment_name(ordinal, f"{2**64 - 1 - ordinal:016x}")
    return SegmentInfo(ordinal, name, 1000 + ordinal, ordinal % 7, expiry, checksum)


def arena(folder: Path, total: int = 1 << 20) -> Arena:
    return Arena.create(str(folder), Budget(total).account("table"))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 3), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(st.just("expire"), st.integers(-50, 50), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_parity_table_beside_a_dict(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    table = SegmentTable(arena(tmp_path_factory.mktemp("arenas")))
    known: dict[int, SegmentInfo] = {}
    ordinal = 0
    for what, number, expiry in steps:
        if what == "add":
            ordinal += number
            known[ordinal] = segment(ordinal, expiry, (expiry * 31) % 2**64)
            table.add(known[ordinal])
        else:
            table.expire(number)
            known = {n: each for n, each in known.items() if each.expiry > number}
        assert dict(table) == known
        assert len(table) == len(known)
        assert ordinal + 1 not in table
    assert [table.get(n) for n in range(ordinal + 2)] == [known.get(n) for n in range(ordinal + 2)]


def test_a_table_comes_back_with_its_arena(tmp_path: Path) -> None:
    first = arena(tmp_path)
    table = SegmentTable(first)
    for ordinal in range(300):
        table.add(segment(ordinal))
    first.release("shard-0.v1.a")
    claimed = Arena.claim(str(tmp_path), "shard-0.v1.a", Budget(1 << 20).account("table"))
    assert claimed is not None
    assert dict(SegmentTable(claimed)) == {n: segment(n) for n in range(300)}


def test_bounded_a_refused_segment_changes_nothing(tmp_path: Path) -> None:
    table = SegmentTable(arena(tmp_path, PAGE))
    for ordinal in range(PAGE // 48):
        table.add(segment(ordinal))
    with pytest.raises(Refused):
        table.reserve()
    with pytest.raises(Refused):
        table.add(segment(PAGE))
    assert dict(table) == {n: segment(n) for n in range(PAGE // 48)}


def test_room_that_was_reserved_is_enough_for_one(tmp_path: Path) -> None:
    table = SegmentTable(arena(tmp_path))
    for ordinal in range(200):
        table.reserve()
        table.add(segment(ordinal))
    assert len(table) == 200


def test_the_name_of_a_segment_tells_ordinal_and_attempt() -> None:
    assert segment_name(7, "00c0ffee00c0ffee") == "0000000007-00c0ffee00c0ffee.seg"
