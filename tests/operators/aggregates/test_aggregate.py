from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.kernels.field_words import is_invertible
from icestream.operators.aggregates.aggregate import (
    OBJECT_FUNCTIONS,
    WORD_FUNCTIONS,
    Aggregate,
    applicable,
)
from icestream.operators.folding.fields import Layout
from tests.fixtures.folding import folded
from tests.fixtures.plans import EVERY_INPUT

TYPES = {field.name: field.type for field in EVERY_INPUT}
APPLICABLE = tuple(applicable(EVERY_INPUT))
COUNT = Aggregate("count", None, "n")


def test_every_function_applies_to_some_column() -> None:
    assert {each.function for each in APPLICABLE} == set(WORD_FUNCTIONS)
    assert not set(WORD_FUNCTIONS) & set(OBJECT_FUNCTIONS)
    assert len({each.alias for each in APPLICABLE}) == len(APPLICABLE)


@pytest.mark.sample(60)
@pytest.mark.parametrize("aggregate", APPLICABLE, ids=lambda a: a.text)
def test_only_nulls_are_counted_as_none_and_answered_by_null(aggregate: Aggregate) -> None:
    columns = {name: pa.nulls(3, TYPES[name]) for name in aggregate.columns}
    counts = aggregate.function.startswith("count")
    assert folded(aggregate, columns) == (0 if counts else None)


@pytest.mark.parametrize("aggregate", [COUNT, *APPLICABLE], ids=lambda a: a.text)
def test_answers_may_be_kept_while_the_table_is_used_again(aggregate: Aggregate) -> None:
    layout = Layout.of(aggregate.fields(TYPES)).typical
    table = np.tile(layout.entry_identity[2:], (5, 1))
    answers = aggregate.lower(table, layout, TYPES)
    before = answers.to_pylist()
    table[:] = 77
    assert answers.to_pylist() == before


@pytest.mark.sample(60)
@pytest.mark.parametrize("aggregate", APPLICABLE, ids=lambda a: a.text)
def test_functions_look_only_at_fields_they_lifted(aggregate: Aggregate) -> None:
    # whatever is in the words of other fields, the answer is the same
    own = aggregate.fields(TYPES)
    layout = Layout.of(f for each in APPLICABLE for f in each.fields(TYPES)).typical
    table = np.tile(layout.entry_identity[2:], (2, 1))
    dirty = table.copy()
    in_order = (*layout.fixed, *layout.sums)
    for field, place in zip(in_order, (layout.places - 2).tolist(), strict=True):
        if field not in own:
            dirty[:, place] = 77
    clean = aggregate.lower(table, layout, TYPES)
    assert aggregate.lower(dirty, layout, TYPES).equals(clean)


def test_functions_of_one_column_share_fields() -> None:
    types = {"x": pa.float64(), "y": pa.float64()}
    names = ("count", "sum", "avg", "min", "max", "var_pop", "var_samp", "stddev_pop")
    fields = [f for name in names for f in Aggregate(name, "x", name).fields(types)]
    kinds = [field.kind for field in Layout.of(fields).fields]
    assert kinds == ["rows", "valid", "sum_f64", "min", "max", "squares_f64"]


def test_functions_of_two_columns_share_fields_whatever_their_order() -> None:
    types = {"x": pa.float64(), "y": pa.float64()}
    one = Layout.of(Aggregate("corr", "x", "a", ("y",)).fields(types))
    pairs = [("covar_pop", "x", "y"), ("covar_samp", "y", "x"), ("corr", "y", "x")]
    more = [f for name, x, y in pairs for f in Aggregate(name, x, "a", (y,)).fields(types)]
    assert set(one.fields) == set(Layout.of(more).fields)


def test_what_can_be_taken_back_is_told_by_the_fields() -> None:
    def can(function: str, kind: pa.DataType, *others: str) -> bool:
        types = {"x": kind, "y": kind}
        fields = Aggregate(function, "x", "a", others).fields(types)
        return all(is_invertible(field.op) for field in fields)

    assert can("count", pa.string())
    assert can("sum", pa.int64())
    assert can("avg", pa.decimal128(9, 2))
    assert can("count_if", pa.bool_())
    assert can("weighted_avg", pa.int32(), "y")
    assert can("sum", pa.float64())
    assert can("var_pop", pa.float64())
    assert not can("first", pa.int64())
    assert can("corr", pa.int32(), "y")
    assert not can("max", pa.int64())


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("sum", pa.string()),
        ("avg", pa.date32()),
        ("stddev_samp", pa.bool_()),
        ("max", pa.string()),
        ("min", pa.decimal128(19, 0)),
        ("sum", pa.decimal128(29, 0)),
    ],
)
def test_types_without_meaning_or_room_are_refused_with_advice(
    function: str, kind: pa.DataType
) -> None:
    with pytest.raises(DefinitionError, match=r"'alias'\): (cast|use)"):
        Aggregate(function, "x", "alias").fields({"x": kind})


def test_a_wrong_number_of_columns_is_refused() -> None:
    types = {"x": pa.int64(), "y": pa.int64()}
    with pytest.raises(DefinitionError, match=r"corr\(x\) has the wrong number .*: give it 2"):
        Aggregate("corr", "x", "a").check(types)
    with pytest.raises(DefinitionError, match=r"sum\(x, y\) has the wrong number"):
        Aggregate("sum", "x", "a", ("y",)).check(types)
    with pytest.raises(DefinitionError, match=r"sum\(\*\) has the wrong number"):
        Aggregate("sum", None, "a").check(types)


def test_calls_are_shown_with_columns_and_literals() -> None:
    assert Aggregate("count", None, "n").text == "count(*)"
    assert Aggregate("corr", "x0", "c", ("x1",)).text == "corr(x0, x1)"
    assert Aggregate("first", "x0", "f", (), (True,)).text == "first(x0, True)"
    assert Aggregate("percentile", "x0", "p", (), ((0.5, 0.9),)).text == (
        "percentile(x0, (0.5, 0.9))"
    )


def test_functions_over_objects_have_no_fields() -> None:
    aggregate = Aggregate("collect_list", "x", "a")
    assert aggregate.is_object
    assert aggregate.result_type({"x": pa.string()}) == pa.list_(pa.string())
    with pytest.raises(DefinitionError, match="has no fields of words"):
        aggregate.fields({"x": pa.string()})
