from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.plan.joins.multi_join import join_text, joined
from icestream.plan.nodes.events import Joined, Mapped
from icestream.plan.nodes.spilling import Spilling
from icestream.state.keys import identified
from tests.fixtures.dataflow_plans import PlanStream
from tests.fixtures.join_plans import SCHEMAS, deferred

K = pa.schema([("k", pa.int64()), ("x", pa.int64())])
L = pa.schema([("k", pa.int64()), ("y", pa.int64())])
M = pa.schema([("m", pa.int64()), ("z", pa.string())])


def streams() -> list[PlanStream]:
    return [PlanStream.of(schema, number) for number, schema in enumerate((K, L, M))]


def made(*streams: PlanStream, on: object) -> Joined:
    node = deferred(*streams, on=on).node  # type: ignore[arg-type]
    assert isinstance(node, Joined)
    return node


def test_columns_of_one_name_with_equal_values_are_shown_once() -> None:
    k, ell, m = streams()
    node = made(k, ell, m, on=[("k", "k", "m")])
    assert node.payload.names == ["k", "x", "y", "m", "z"]
    assert node.keys == (("k",), ("k",), ("m",))
    assert join_text(node) == "join 3 streams by k = k = m"


def test_a_name_that_all_streams_have_needs_no_tuple() -> None:
    k, ell, _ = streams()
    assert made(k, ell, on="k").keys == made(k, ell, on=["k"]).keys == (("k",), ("k",))
    assert join_text(made(k, ell, on="k")) == "join 2 streams by k"


@pytest.mark.parametrize(("one", "other"), [(pa.int32(), pa.int64()), (pa.float64(), pa.float32())])
def test_numbers_of_other_widths_are_comparable(one: pa.DataType, other: pa.DataType) -> None:
    left = PlanStream.of(pa.schema([("k", one), ("x", pa.int64())]))
    right = PlanStream.of(pa.schema([("k", other), ("y", pa.int64())]), 1)
    assert made(left, right, on="k").payload.field("k").type == one
    identities = [
        identified(pa.record_batch([pa.array([-3, 0, 7], kind)], names=["k"]), ("k",))
        for kind in (one, other)
    ]
    np.testing.assert_array_equal(identities[0], identities[1])


def test_a_null_in_a_key_joins_nothing() -> None:
    k, ell, _ = streams()
    node = made(k, ell, on="k")
    assert all(isinstance(each, Mapped) and "IS NULL" in each.text for each in node.inputs)


def test_results_of_a_join_have_no_null_in_its_key() -> None:
    k, ell, m = streams()
    inner = deferred(k, ell, on="k")
    assert made(inner, m, on=[("k", "m")]).inputs[0] is inner.node


@pytest.mark.parametrize(
    ("on", "match"),
    [
        ([], "needs columns with equal values"),
        ([("k", "k")], "each of the 3 streams"),
        ("k", "join names 'k'; the columns are"),
        ([("k", "k", "z")], "must have one type"),
        ([("x", "y", "m")], "several streams of the join have 'k'"),
    ],
)
def test_what_cannot_be_joined_is_refused(on: object, match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        made(*streams(), on=on)


def test_a_condition_sees_the_columns_of_the_result() -> None:
    k, ell, _ = streams()
    nodes = [k.node, ell.node]
    assert joined(nodes, "k", "x < y", Spilling()).where is not None
    with pytest.raises(DefinitionError, match="missing"):
        joined(nodes, "k", "missing < y", Spilling())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"strategy": "best"}, "strategy must be one of"),
        ({"threshold": 0.0}, "threshold must be a fraction"),
        ({"amount": 1.5}, "amount must be a fraction"),
        ({"partitions": 4099}, "multiple of a number from 32 to 4096"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(DefinitionError, match=match):
        Spilling(**options)  # type: ignore[arg-type]


def test_key_groups_are_cut_into_partitions_of_equal_width() -> None:
    assert Spilling(partitions=300).key_groups == 300
    assert Spilling(partitions=8192).key_groups == 4096
    assert Spilling().key_groups == 256


def test_streams_of_tests_have_names_of_their_own() -> None:
    assert len({name for schema in SCHEMAS for name in schema.names}) == 15
