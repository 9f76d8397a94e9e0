from __future__ import annotations

from collections.abc import Iterator, Sequence

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import given

from icestream.core.arrays import Slots
from icestream.operators.lifetimes.changes import DIFF
from icestream.operators.process.grouping import portions_of
from tests.oracles.plain_groups import PlainGroups
from tests.oracles.process import InputRow, changes_of_steps


class Scattered(PlainGroups):
    """Cuts slots into parts that do not lie side by side."""

    def portions(self, slots: Slots, synopses: Sequence[int] = ()) -> Iterator[Slots]:
        del synopses
        for part in (slots[::2], slots[1::2][::-1]):
            if len(part):
                yield part


ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.integers(0, 2)), max_size=30)


@given(ROWS, st.sampled_from([PlainGroups, Scattered]), st.booleans())
def test_portions_cover_a_chunk_in_time_order(
    rows: list[tuple[int, int, int]], kind: type[PlainGroups], expand: bool
) -> None:
    steps = [InputRow(user, time, "", number) for number, (user, time, _) in enumerate(rows)]
    changes = changes_of_steps(steps)
    diffs = pa.array([diff for _, _, diff in rows], type=pa.int64())
    changes = changes.set_column(changes.schema.get_field_index(DIFF), DIFF, diffs)
    groups = kind(())
    seen = []
    for portion in portions_of(groups, changes, expand=expand):
        keys = portion.keys(pa.schema([("user", pa.int64())])).column("user").to_pylist()
        id_high, _ = groups.identities(portion.slots)
        assert keys == id_high.tolist()
        assert len(portion.starts) == len(portion.slots) + 1
        for key, first, last in zip(keys, portion.starts[:-1], portion.starts[1:], strict=True):
            mine = portion.events.slice(first, last - first)
            assert first < last
            assert set(mine.column("user").to_pylist()) == {key}
            numbers = mine.column("a").to_pylist()
            times = portion.times[first:last].tolist()
            assert list(zip(times, numbers, strict=True)) == sorted(
                zip(times, numbers, strict=True)
            )
            assert (portion.ends[first:last] == portion.times[first:last] + 1).all()
            seen += list(zip(numbers, portion.diffs[first:last].tolist(), strict=True))
    given_rows = [(number, diff) for number, (_, _, diff) in enumerate(rows)]
    if expand:
        given_rows = [(number, 1) for number, diff in given_rows for _ in range(diff)]
    assert sorted(seen) == given_rows
    assert np.unique([number for number, _ in seen]).size == len({n for n, _ in given_rows})
