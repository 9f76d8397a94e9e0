"""Which columns of a source are read."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from icestream.operators.dataflow.steps import Filtering, Projecting
from icestream.operators.lifetimes.alter_lifetimes import AlterLifetimes
from icestream.plan.events.needed_columns import needed_columns
from icestream.plan.nodes.events import Entered, FromSource, Left, Mapped, Node, Scope, United
from icestream.plan.windows.lifetimes import Forever
from icestream.sql.expressions.compile import Predicate, Projection

COLUMNS = pa.schema([(name, pa.int64()) for name in ("a", "b", "c", "d")])
SOURCE = FromSource(COLUMNS, source=7)


def select(before: Node, *texts: str) -> Node:
    projection = Projection.bind(before.payload, list(texts))
    change = Projecting(projection)
    return Mapped(projection.schema, before=before, change=change, text="select")


def where(before: Node, text: str) -> Node:
    change = Filtering(Predicate.bind(before.payload, text))
    return Mapped(before.payload, before=before, change=change, text="where")


def grouped(before: Node, *keys: str) -> Node:
    scope = Scope(keys)
    return Left(before.payload, before=Entered(before.payload, scope, before=before))


def names(node: Node) -> Sequence[str]:
    found: Sequence[str] = needed_columns(node)[7].names
    return found


def test_a_projection_names_what_is_needed() -> None:
    assert names(grouped(select(SOURCE, "c", "a + 1 AS x"), "c")) == ["a", "c"]


def test_a_stream_without_a_projection_is_needed_as_a_whole() -> None:
    assert names(grouped(where(SOURCE, "a > 1"), "b")) == ["a", "b", "c", "d"]


def test_a_projection_inside_a_group_changes_nothing() -> None:
    assert names(select(grouped(SOURCE, "a"), "a")) == ["a", "b", "c", "d"]


def test_conditions_before_a_projection_count() -> None:
    forever = Mapped(
        COLUMNS, before=where(SOURCE, "d > 1"), change=AlterLifetimes(Forever()), text="forever"
    )
    assert names(grouped(select(where(forever, "b > 0"), "a"), "a")) == ["a", "b", "d"]


def test_a_change_that_may_look_at_anything_needs_the_whole() -> None:
    def same(changes: pa.RecordBatch) -> pa.RecordBatch:
        return changes

    changed = Mapped(COLUMNS, before=SOURCE, change=same, text="same")
    assert names(grouped(select(changed, "a"), "a")) == ["a", "b", "c", "d"]


def test_only_the_projection_next_to_the_source_counts() -> None:
    assert names(grouped(select(select(SOURCE, "a", "b AS x"), "a"), "a")) == ["a", "b"]


def test_all_uses_of_a_source_count() -> None:
    both = United(pa.schema([("a", pa.int64())]), parts=(select(SOURCE, "a"), select(SOURCE, "a")))
    assert names(grouped(both, "a")) == ["a"]
    other = select(SOURCE, "b + c AS a")
    assert names(grouped(United(both.payload, parts=(both, other)), "a")) == ["a", "b", "c"]


def test_a_source_of_which_nothing_is_needed_keeps_a_column() -> None:
    assert names(grouped(select(SOURCE, "1 AS one"), "one")) == ["a"]
