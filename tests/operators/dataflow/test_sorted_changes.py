from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.arrays import Ids, Ints
from icestream.operators.dataflow.sorted_changes import (
    INNER,
    between,
    by_group,
    collected,
    first_and_last,
    gathered,
    nested,
    order_in_runs,
    order_of,
    pieces,
)
from icestream.operators.folding.fold import ID_HIGH_COLUMN
from icestream.operators.lifetimes.changes import LE, changes_of


def changes(identities: list[int], first: int = 0) -> pa.RecordBatch:
    id_high = np.array(identities, dtype=np.uint64)
    numbers = np.arange(first, first + len(id_high))
    payload = pa.record_batch([pa.array(numbers)], names=["number"])
    ones = np.ones(len(id_high), dtype=np.int64)
    begins = numbers * 7919 % 13
    return changes_of(payload, begins, begins + 1, ones, id_high, id_high)


class Records:
    """Changes in records, each in the order of identities."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self.batches = [by_group(batch) for batch in batches if batch.num_rows]

    def ranges(self, edge: int) -> tuple[Ids, Ints]:
        del edge
        firsts = [first_and_last(batch)[0] for batch in self.batches]
        sizes = [batch.nbytes for batch in self.batches]
        return np.array(firsts, dtype=np.uint64), np.array(sizes, dtype=np.int64)

    def changes(self, edge: int, first: int, last: int) -> Iterator[pa.RecordBatch]:
        del edge
        for batch in self.batches:
            yield between(batch, first, last)


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [
        pair
        for batch in batches
        for pair in zip(
            batch.column(ID_HIGH_COLUMN).to_pylist(),
            batch.column("number").to_pylist(),
            strict=True,
        )
    ]


@given(
    st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), max_size=30), max_size=5),
    st.integers(1, 4000),
)
def test_oracle_passes_yield_every_change_once_in_order(
    batches: list[list[int]], room: int
) -> None:
    made, first = [], 0
    for identities in batches:
        made.append(changes(identities, first))
        first += len(identities)
    assert rows_of(gathered(Records(made), 0, room)) == sorted(rows_of(made))
    timed = list(gathered(Records(made), 0, room, timed=True))
    begins = [at for part in timed for at in part.column(LE).to_pylist()]
    identities_reported = [identity for identity, _ in rows_of(timed)]
    reported = list(zip(identities_reported, begins, strict=True))
    assert sorted(rows_of(timed)) == sorted(rows_of(made))
    assert reported == sorted(reported)


@pytest.mark.parametrize("distinct", [1, 7, 500, 10**9])
@pytest.mark.parametrize("runs", [1, 4, 3000])
def test_oracle_identities_are_put_in_a_stable_order(distinct: int, runs: int) -> None:
    dice = np.random.default_rng(distinct + runs)
    known = dice.integers(0, 2**64 - 1, min(distinct, 3000), dtype=np.uint64)
    parts = np.array_split(known[dice.integers(0, len(known), 6000)], runs)
    identities = np.concatenate([np.sort(part) for part in parts])
    assert np.array_equal(order_of(identities), np.argsort(identities, kind="stable"))


@pytest.mark.parametrize("latest", [50, 2**62])
def test_oracle_rows_are_put_in_order_by_run_and_time(latest: int) -> None:
    dice = np.random.default_rng(latest)
    runs, times = dice.integers(0, 9, 500), dice.integers(-latest, latest, 500)
    assert np.array_equal(order_in_runs(runs, times), np.lexsort((times, runs)))


@given(st.lists(st.lists(st.integers(0, 3), min_size=1), max_size=5), st.integers(1, 4000))
def test_collected_changes_come_as_they_are(batches: list[list[int]], room: int) -> None:
    records = Records([changes(identities) for identities in batches])
    parts = list(collected(records, 0, room))
    assert rows_of(parts) == rows_of(records.batches)
    largest = max((each.nbytes for each in records.batches), default=0)
    assert all(part.nbytes <= max(room, largest) for part in parts)


@pytest.mark.parametrize("rooms", [1, 3, 17])
def test_bounded_passes_take_about_what_there_is_room_for(rooms: int) -> None:
    dice = np.random.default_rng(rooms)
    whole = changes(np.sort(dice.integers(0, 2**63, 40_000)).tolist())
    records = Records([whole.slice(start, 400) for start in range(0, 40_000, 400)])
    size = sum(each.nbytes for each in records.batches)
    parts = list(gathered(records, 0, size // rooms))
    assert sum(part.num_rows for part in parts) == 40_000
    assert max(part.nbytes for part in parts) <= 1.3 * size / rooms


def test_passes_are_alike_and_no_more_than_needed() -> None:
    whole = changes(np.linspace(0, 2**62, 4_000).astype(np.int64).tolist())
    records = Records([whole.slice(start, 100) for start in range(0, 4_000, 100)])
    size = sum(each.nbytes for each in records.batches)
    for room, wanted in [(size, 1), (size / 2.1, 2), (size / 2.3, 3), (2 * size, 1)]:
        counts = [part.num_rows for part in gathered(records, 0, int(room))]
        assert len(counts) == wanted
        assert max(counts) - min(counts) <= 200


@given(st.lists(st.integers(0, 6), max_size=30), st.integers(1, 12), st.integers(1, 7))
def test_oracle_entire_pieces_have_all_changes_of_their_groups(
    identities: list[int], rows: int, groups: int
) -> None:
    found = changes(identities)
    cut = list(pieces(found, rows, groups))
    if cut:
        assert by_group(pa.concat_batches([piece for piece, _ in cut])).equals(by_group(found))
    assert bool(cut) == bool(identities)
    for piece, entire in cut:
        mine = piece.column(ID_HIGH_COLUMN).to_pylist()
        assert 0 < len(mine) <= rows
        assert len(set(mine)) <= groups
        assert entire == all(mine.count(each) == identities.count(each) for each in mine)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30), st.integers(1, 12))
def test_pieces_say_where_the_groups_around_them_end(
    pairs: list[tuple[int, int]], rows: int
) -> None:
    # outer group 2 with inner groups 0 and 1, then outer group 3, in pieces of at most three rows:
    #
    #     2.0 2.0 | 2.1 2.1 2.1 | 3.0 3.0      the second piece ends the group around it
    found = changes(sorted((outer << INNER) + inner for outer, inner in pairs))
    cut = list(nested(found, rows, lambda some: pieces(some, rows, len(pairs))))
    assert rows_of([piece for piece, _, _ in cut]) == rows_of([found])
    left = sorted(outer for outer, _ in pairs)
    for number, (piece, entire, is_end) in enumerate(cut):
        mine = [each >> INNER for each in piece.column(ID_HIGH_COLUMN).to_pylist()]
        del left[: len(mine)]
        ends = bool(left) and left[0] != mine[-1]
        assert not is_end or ends
        # groups that fit into a piece are not torn
        assert is_end or number + 1 == len(cut) or len(set(mine)) == 1
        assert entire or len(set(piece.column(ID_HIGH_COLUMN).to_pylist())) == 1


@given(st.lists(st.integers(0, 6), max_size=30), st.integers(1, 12), st.integers(1, 3))
def test_groups_that_do_not_count_do_not_cut(identities: list[int], rows: int, groups: int) -> None:
    def counted(part: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        return np.asarray(part.column(ID_HIGH_COLUMN).to_numpy()) < 3

    cut = list(pieces(changes(identities), rows, groups, counted))
    assert rows_of([by_group(piece) for piece, _ in cut]) == rows_of(
        [by_group(changes(identities))]
    )
    for piece, entire in cut:
        mine = piece.column(ID_HIGH_COLUMN).to_pylist()
        assert len(mine) <= rows
        assert len({each for each in mine if each < 3}) <= groups
        assert entire or len(set(mine)) == 1
    assert len(cut) <= len(list(pieces(changes(identities), rows, groups)))
