from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from icestream.operators.lifetimes.changes import changes_schema
from icestream.operators.lifetimes.rows_by_group import (
    LazyRows,
    RowsByGroup,
    clipped,
    first_rows,
    keep,
)
from icestream.state.groups.spec import GroupRows, Synopsis
from tests.fixtures import lifetime_events as scenarios
from tests.oracles import lifetimes as oracle
from tests.oracles.lifetimes import bag_of, changes_from, events_of
from tests.oracles.plain_groups import PlainGroups

PORT = scenarios.port()
NUMBERS = pa.schema([("x", pa.int64())])


SLOTS = st.integers(0, 6) | st.sampled_from([1 << 16, (1 << 16) + 3, (1 << 31) - 2])


@given(st.lists(SLOTS, min_size=1), st.randoms(use_true_random=False))
def test_rows_of_a_portion_are_found_in_order(slots: list[int], dice: Random) -> None:
    by_slot = RowsByGroup(np.array(slots))
    assert by_slot.distinct.tolist() == sorted(set(slots))
    portion = dice.sample(sorted(set(slots)), dice.randint(1, len(set(slots))))
    rows, owners = by_slot.within(np.array(portion))
    expected = [
        (row, owner)
        for owner, slot in enumerate(portion)
        for row, mine in enumerate(slots)
        if mine == slot
    ]
    assert list(zip(rows.tolist(), owners.tolist(), strict=True)) == expected
    firsts = [owners.tolist().index(owner) for owner in range(len(portion))]
    assert first_rows(owners, len(portion)).tolist() == firsts


@given(st.randoms(use_true_random=False), st.integers(-20, 20))
def test_clipping_keeps_what_lies_ahead(dice: Random, watermark: int) -> None:
    (batch, *_) = scenarios.scenario(dice, [PORT], scenarios.ScenarioKind(shuffled=True))
    for _, changes in batch.chunks:
        left, le, re = clipped(changes, watermark)
        assert left.schema == changes_schema(PORT.schema)
        events = zip(events_of(left), le.tolist(), re.tolist(), strict=True)
        ahead = changes_from(
            [(event._replace(le=start, re=end), diff) for (event, diff), start, end in events],
            PORT.schema,
        )
        assert bag_of(ahead) == oracle.from_instant(bag_of(changes), watermark)


def rows(values: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], schema=NUMBERS)


def values_of(found: GroupRows, owner: int) -> list[int]:
    mine: list[int] = found.rows.filter(pa.array(found.owners == owner)).column("x").to_pylist()
    return mine


def wanted(found: GroupRows) -> LazyRows:
    return LazyRows(found.owners, lambda places: found.rows.take(pa.array(places)))


def test_bounded_kept_rows_are_at_most_twice_those_needed() -> None:
    groups = PlainGroups([Synopsis("numbers", NUMBERS)])
    slots = groups.locate(np.arange(3, dtype=np.uint64), np.arange(3, dtype=np.uint64))
    # the first group needs the sum of its rows only, the second all of them, the third gets none
    for step in range(1, 20):
        read = groups.read(0, slots)
        new = GroupRows(np.array([0, 1]), rows([step, step]))
        total = sum(values_of(read, 0)) + step
        after = GroupRows(np.array([0, *[1] * step]), rows([total, *values_of(read, 1), step]))
        keep(groups, 0, slots, read.owners, wanted(new), wanted(after))
        kept = groups.read(0, slots)
        assert len(values_of(kept, 0)) <= 2
        assert sum(values_of(kept, 0)) == step * (step + 1) // 2
        assert values_of(kept, 1) == list(range(1, step + 1))


def test_worn_groups_are_rewritten() -> None:
    groups = PlainGroups([Synopsis("numbers", NUMBERS)])
    slots = groups.locate(np.zeros(1, dtype=np.uint64), np.zeros(1, dtype=np.uint64))
    groups.append(0, slots[[0, 0, 0]], rows([1, 2, 3]))
    kept, new = groups.read(0, slots), GroupRows(np.array([0]), rows([-2]))
    after = GroupRows(np.zeros(3, dtype=np.int64), rows([1, 3, 9]))
    keep(groups, 0, slots, kept.owners, wanted(new), wanted(after), worn=True)
    assert groups.read(0, slots).rows["x"].to_pylist() == [1, 3, 9]
