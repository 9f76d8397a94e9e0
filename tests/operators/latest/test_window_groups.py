"""Aggregates whose groups are finer than the update key."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.latest.window_aggregate import WindowedUpdates
from icestream.state.queue.windows.spec import UpdateWindows
from tests.oracles.queue import last_instant

SCHEMA = pa.schema(
    [("symbol", pa.string()), ("venue", pa.string()), ("time", pa.int64()), ("price", pa.int64())]
)
AGGREGATES = (Aggregate("count", None, "n"), Aggregate("sum", "price", "total"))
Group = tuple[str, str]
STEPS = st.lists(
    st.one_of(
        st.integers(0, 12),
        st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.sampled_from("xyz"),
                st.sampled_from([-3, -2, 0, 1, 2, 3]),
                st.integers(0, 9),
            ),
            max_size=12,
        ),
    ),
    max_size=12,
)


def operator(windows: UpdateWindows) -> WindowedUpdates:
    return WindowedUpdates(
        SCHEMA,
        keys=["symbol"],
        by=["symbol", "venue"],
        time="time",
        windows=windows,
        aggregates=AGGREGATES,
    )


def batch_of(rows: list[tuple[str, str, int, int]]) -> pa.RecordBatch:
    names = SCHEMA.names
    return pa.RecordBatch.from_pylist(
        [dict(zip(names, row, strict=True)) for row in rows], schema=SCHEMA
    )


@given(
    lengths=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    semantics=st.sampled_from(["lazy", "eager"]),
    steps=STEPS,
)
@settings(max_examples=120)
def test_oracle_windows_of_groups_end_by_their_tuples_or_the_watermark(
    lengths: tuple[int, int],
    semantics: str,
    steps: list[int | list[tuple[str, str, int, int]]],
) -> None:
    """After each batch the watermark is its latest time; a step has times relative to it."""
    windows = UpdateWindows(max(lengths), min(lengths), semantics)  # type: ignore[arg-type]
    made = operator(windows)
    watermark, late = 1, 0
    clock: dict[Group, int] = {}
    known: dict[Group, dict[int, int]] = {}
    shown: dict[Group, int] = {}

    def is_full(group: Group, number: int) -> bool:
        end = last_instant(windows, number)
        return end <= max(known[group]) or end < watermark

    for step in [*steps, 1000, 1000]:
        if isinstance(step, list):
            rows: list[tuple[str, str, int, int]] = []
            for symbol, venue, ahead, price in step:
                group, time = (symbol, venue), max(1, watermark + ahead)
                # one instant is in one batch here: later ones may come after it was served
                if time in known.get(group, {}) and not any(
                    row[:3] == (symbol, venue, time) for row in rows
                ):
                    continue
                rows.append((symbol, venue, time, price))
                if time < clock.get(group, 0):
                    late += 1
                    continue
                clock[group] = time
                known.setdefault(group, {})[time] = price
            made.enqueue(batch_of(rows), np.arange(len(rows)))
            watermark = max([watermark, *(row[2] for row in rows)])
            made.advance(watermark)
            clock = {group: max(at, watermark - 1) for group, at in clock.items()}
            continue
        for row in made.serve(step).to_pylist():
            group = row["symbol"], row["venue"]
            start, end = row["window_start"], row["window_end"]
            inside = [price for t, price in known[group].items() if start <= t <= end]
            assert (row["n"], row["total"]) == (len(inside), sum(inside))
            assert is_full(group, start // windows.slide)
            assert start > shown.get(group, -1)
            shown[group] = start
    assert made.facts["late"] == late
    assert made.facts["ready"] == 0
    for group, mine in known.items():
        fulls = [
            number * windows.slide
            for number in range(min(mine) // windows.slide, max(mine) // windows.slide + 1)
            if is_full(group, number)
            and any(
                number * windows.slide <= time <= last_instant(windows, number) for time in mine
            )
        ]
        if semantics == "lazy":
            assert shown.get(group, -1) == max(fulls, default=-1)


def test_a_rare_group_is_answered_by_the_watermark() -> None:
    made = operator(UpdateWindows(4, 4))
    made.enqueue(batch_of([("a", "x", 4, 1), ("a", "y", 5, 2)]), np.array([1, 2]))
    assert made.serve(10).num_rows == 0
    made.enqueue(batch_of([("a", "y", 8, 2)]), np.array([3]))
    made.advance(8)
    found = made.serve(10).sort_by("venue").to_pylist()
    assert [(row["venue"], row["window_end"], row["n"]) for row in found] == [
        ("x", 7, 1),
        ("y", 7, 1),
    ]


def test_a_group_supersedes_only_itself() -> None:
    made = operator(UpdateWindows(2, 1))
    rows = [("a", "x", time, 1) for time in (1, 2)] + [("a", "y", time, 5) for time in (3, 4, 5)]
    made.enqueue(batch_of(rows), np.arange(5))
    made.advance(5)
    found = made.serve(10).sort_by("venue").to_pylist()
    # the newest window of x that has tuples, 2-3, and of y, 4-5; older ones are passed over
    assert [(row["venue"], row["window_start"], row["n"]) for row in found] == [
        ("x", 2, 1),
        ("y", 4, 2),
    ]


def test_grouping_by_less_than_the_key_is_refused() -> None:
    with pytest.raises(DefinitionError, match="must group by its key"):
        WindowedUpdates(
            SCHEMA,
            keys=["symbol", "venue"],
            by=["symbol"],
            time="time",
            windows=UpdateWindows(1, 1),
            aggregates=AGGREGATES,
        )


def test_the_watermark_makes_only_known_keys_late() -> None:
    aggregate = operator(UpdateWindows(10, 10))
    known = [(symbol, "x", 1, 1) for symbol in "abc"]
    aggregate.enqueue(batch_of(known), np.ones(3, dtype=np.int64))
    aggregate.advance(100)
    late = [("a", "x", 50, 1), ("new", "x", 50, 1)]
    aggregate.enqueue(batch_of(late), np.full(2, 100))
    assert aggregate.facts["late"] == 1
    assert aggregate.keys == 4
