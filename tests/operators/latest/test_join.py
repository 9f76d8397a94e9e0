"""Join of update streams on their key."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.operators.latest import join as join_module
from icestream.operators.latest.join import UpdateJoin
from icestream.operators.latest.update_stream import UpdateStream

LEFT = UpdateStream(
    pa.schema([("k", pa.string()), ("t", pa.int64()), ("a", pa.int64())]), ("k",), "t"
)
RIGHT = UpdateStream(
    pa.schema([("k", pa.string()), ("t", pa.int64()), ("b", pa.int64())]), ("k",), "t"
)
Row = tuple[str, int, int]
BATCH = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(-1, 4), st.integers(0, 4)), max_size=6
)


def rows(port: int, values: list[Row]) -> pa.RecordBatch:
    name, schema = ("a", LEFT.schema) if port == 0 else ("b", RIGHT.schema)
    return pa.RecordBatch.from_pylist(
        [{"k": k, "t": t, name: v} for k, t, v in values], schema=schema
    )


def newest(join: UpdateJoin, port: int, values: list[Row]) -> list[dict[str, Any]]:
    """Return the newest match of each key that rows of one side make."""
    sides = [rows(0, []), rows(1, [])]
    sides[port] = rows(port, values)
    return list({row["k"]: row for row in join.on_batch(sides).to_pylist()}.values())


@given(
    steps=st.lists(st.tuples(st.integers(0, 1), BATCH), max_size=8),
    within=st.integers(0, 4),
    condition=st.sampled_from([None, "a + b > 3", "a = b"]),
    forgets=st.booleans(),
)
@settings(max_examples=200)
def test_oracle_join_beside_its_definition(
    steps: list[tuple[int, list[Row]]], within: int, condition: str | None, forgets: bool
) -> None:
    def holds(a: int, b: int) -> bool:
        return {None: True, "a + b > 3": a + b > 3}.get(condition, a == b)

    enough, join_module.ENOUGH_ROWS = join_module.ENOUGH_ROWS, 0 if forgets else 1024
    try:
        join = UpdateJoin(LEFT, RIGHT, within=within, condition=condition)
        kept: tuple[dict[str, list[Row]], ...] = ({}, {})
        shown: dict[str, tuple[int, int]] = {}
        clocks = {"a": 0, "b": 0}
        for port, step in steps:
            batch = []
            for key, ahead, value in step:
                clocks[key] += ahead
                batch.append((key, clocks[key], value))
            fresh: list[Row] = []
            for row in batch:
                mine = kept[port].setdefault(row[0], [])
                if mine and row[1] == mine[-1][1]:
                    fresh = [each for each in fresh if each is not mine[-1]]
                    mine.pop()
                if not mine or row[1] > mine[-1][1]:
                    mine.append(row)
                    fresh.append(row)
            best: dict[str, tuple[int, int, int, int]] = {}
            for key, time, value in fresh:
                for _, other_time, other in kept[1 - port].get(key, []):
                    a, b = (value, other) if port == 0 else (other, value)
                    pair = (max(time, other_time), min(time, other_time))
                    if (
                        abs(time - other_time) <= within
                        and holds(a, b)
                        and pair >= shown.get(key, (-99, -99))
                        and (key not in best or pair > best[key][:2])
                    ):
                        best[key] = (*pair, a, b)
            found = newest(join, port, batch)
            assert {row["k"]: (row["t"], row["a"], row["b"]) for row in found} == {
                key: (younger, a, b) for key, (younger, _, a, b) in best.items()
            }
            assert len(found) == len(best)
            shown |= {key: match[:2] for key, match in best.items()}
    finally:
        join_module.ENOUGH_ROWS = enough


def test_the_newest_match_is_delivered_alone() -> None:
    join = UpdateJoin(LEFT, RIGHT, within=10)
    newest(join, 0, [("a", 1, 1), ("a", 2, 2), ("b", 3, 3)])
    found = newest(join, 1, [("a", 5, 7), ("a", 6, 8)])
    assert found == [{"k": "a", "t": 6, "a": 2, "b": 8}]


def test_bounded_join_forgets_what_cannot_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_module, "ENOUGH_ROWS", 8)
    join = UpdateJoin(LEFT, RIGHT, within=5)
    for time in range(0, 2000, 2):
        newest(join, 0, [("a", time, time)])
        newest(join, 1, [("a", time + 1, time)])
        stored = join.state()
        assert max(len(stored["left.keys"]), len(stored["right.keys"])) <= 20


def test_bounded_join_forgets_keys_of_one_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_module, "ENOUGH_ROWS", 8)
    join = UpdateJoin(LEFT, RIGHT, within=5, lateness=10)
    matches = 0
    for time in range(0, 2000, 2):
        # "a" is on both sides, other keys are on the left alone and never come again
        newest(join, 0, [("a", time, time), (f"k{time}", time, time)])
        found = newest(join, 1, [("a", time + 1, time)])
        matches += [row["a"] for row in found] == [time]
        stored = join.state()
        assert max(len(stored["left.keys"]), len(stored["right.keys"])) <= 40
        assert len(stored["known"]) <= 80
        # a task continues where the one before it ended
        join = UpdateJoin(LEFT, RIGHT, within=5, lateness=10)
        join.recall({name: array.copy() for name, array in stored.items()})
    assert matches == 1000
    # a row that is not too late finds what it can match
    newest(join, 0, [("b", 2010, 7)])
    newest(join, 1, [(f"c{time}", time, 1) for time in range(2000, 2018)])
    (match,) = newest(join, 1, [("b", 2008, 8)])
    assert (match["t"], match["a"], match["b"]) == (2010, 7, 8)


def test_streams_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DefinitionError, match="rename them"):
        UpdateJoin(LEFT, LEFT, within=1)
    other = UpdateStream(RIGHT.schema, ("b",), "t")
    with pytest.raises(DefinitionError, match="same key columns"):
        UpdateJoin(LEFT, other, within=1)


def test_rows_that_are_older_are_late_and_one_as_old_replaces_the_one_before() -> None:
    join = UpdateJoin(LEFT, RIGHT, within=1)
    newest(join, 0, [("a", 3, 1), ("a", 3, 2), ("a", 2, 3)])
    assert join.late == 1
    assert [row["a"] for row in newest(join, 1, [("a", 4, 7)])] == [2]
    assert [row["a"] for row in newest(join, 0, [("a", 3, 9)])] == [9]


@given(
    steps=st.lists(st.tuples(st.integers(0, 1), BATCH), max_size=8),
    within=st.integers(0, 4),
    condition=st.sampled_from([None, "a + b > 3"]),
    cuts=st.sets(st.integers(1, 20)),
)
@settings(max_examples=100)
def test_oracle_every_match_does_not_depend_on_the_pieces(
    steps: list[tuple[int, list[Row]]], within: int, condition: str | None, cuts: set[int]
) -> None:
    clocks = [{"a": 0, "b": 0}, {"a": 0, "b": 0}]
    reported: list[tuple[int, int, Row]] = []
    for port, step in steps:
        for key, ahead, value in step:
            clocks[port][key] += max(1, ahead)
            reported.append((clocks[port][key], port, (key, clocks[port][key], value)))
    reported.sort()
    wanted: dict[tuple[str, int], tuple[int, int, int]] = {}
    for left_time, one, (key, _, a) in reported:
        for right_time, other, (same, _, b) in reported:
            holds = condition is None or a + b > 3
            if (one, other) == (0, 1) and key == same and holds:
                younger, older = max(left_time, right_time), min(left_time, right_time)
                if younger - older <= within:
                    best = wanted.get((key, younger), (-1, 0, 0))
                    wanted[key, younger] = max(best, (older, a, b))
    join = UpdateJoin(LEFT, RIGHT, within=within, condition=condition)
    found: dict[tuple[str, int], tuple[int, int]] = {}
    instants = sorted({time for time, _, _ in reported})
    bounds = [0, *sorted(cuts), 1 << 40]
    for first, last in pairwise(bounds):
        chosen = [each for each in reported if first <= instants.index(each[0]) < last]
        both = [rows(port, [row for _, side, row in chosen if side == port]) for port in (0, 1)]
        for row in join.on_batch(both).to_pylist():
            assert (row["k"], row["t"]) not in found
            found[row["k"], row["t"]] = row["a"], row["b"]
    assert found == {instant: (a, b) for instant, (_, a, b) in wanted.items()}
