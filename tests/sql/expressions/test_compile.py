"""Expressions bound to a schema and evaluated over batches."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.sql.expressions.compile import Predicate, Projection, parse
from icestream.sql.expressions.types import TIMESTAMP

BATCH = pa.RecordBatch.from_pydict(
    {
        "user": [1, 2, None, 4],
        "Rating": [4.5, None, float("nan"), 2.0],
        "item": ["x", None, "z", "x"],
        "price": pa.array([Decimal("1.50"), Decimal("2.25"), None, Decimal(0)]).cast(
            pa.decimal128(9, 2)
        ),
        "at": pa.array([0, 10**6, None, -1], pa.timestamp("us", "UTC")),
        "pair": [{"a": 1, "B": "u"}, {"a": None, "B": "v"}, None, {"a": 4, "B": None}],
    }
)


def _of(text: str) -> Any:
    return parse(text).bind(BATCH.schema).evaluate(BATCH).to_pylist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "ratting > 3",
            "there is no column 'ratting'; did you mean 'Rating'? The columns are ['user'",
        ),
        ("zzz > 3", "there is no column 'zzz'. The columns are ['user'"),
        ("pair.c", "there is no field 'c'. It has ['a', 'B']"),
        ("user.c", "BIGINT has no fields, so no field 'c'"),
    ],
)
def test_unknown_columns_are_reported(text: str, message: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        parse(text).bind(BATCH.schema)
    assert message in str(refused.value)


def test_columns_are_found_in_any_case() -> None:
    assert _of("RATING > 3 AND `Item` IS NOT NULL") == [True, False, True, False]
    assert parse("RATING + user").bind(BATCH.schema).columns == {"Rating", "user"}
    twice = pa.schema([("a", pa.int32()), ("A", pa.int32())])
    with pytest.raises(DefinitionError, match=r"this is ambiguous between \['a', 'A'\]"):
        parse("a + 1").bind(twice)


def test_fields_of_structs() -> None:
    assert _of("pair.a + 1") == [2, None, None, 5]
    assert _of("PAIR.b") == ["u", "v", None, None]
    assert _of("pair['B']") == ["u", "v", None, None]
    assert parse("pair.a").bind(BATCH.schema).columns == {"pair"}


TEXTS = [
    "user", "1", "null", "'x'", "user + 1", "price * 2", "price / 3", "coalesce(item, 'none')",
    "case when user > 1 then item end", "concat(item, user)", "date_trunc('day', at)", "pair",
    "cast(at as string)", "cast(price as string)", "round(rating, 1)", "user in (1, 2)", "pair.a",
    "greatest(user, 2)", "at + interval 1 hour", "cast(rating as string)", "price = 1.5", "true",
    "try_cast(item as decimal(5, 2))", "user % 2", "pow(rating, 2)", "item like 'x%'", "year(at)",
    "struct(user, item)", "interval 1 day", "timestamp '2024-01-01'", "try_add(user, user)",
    "cast(item as binary)", "rating <=> null", "least(rating, 3)", "1 + 1", "if(true, 1, 2)",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_results_have_the_bound_type_and_length(text: str) -> None:
    bound = parse(text).bind(BATCH.schema)
    whole = bound.evaluate(BATCH)
    assert isinstance(whole, pa.Array)
    for start in range(5):
        for size in range(5 - start):
            part = bound.evaluate(BATCH.slice(start, size))
            assert part.type == bound.type
            assert str(part.to_pylist()) == str(whole.slice(start, size).to_pylist())
    nothing = pa.RecordBatch.from_arrays(
        [pa.nulls(3, field.type) for field in BATCH.schema], schema=BATCH.schema
    )
    assert len(bound.evaluate(nothing)) == 3
    assert bound.nullable or whole.null_count == 0


def test_columns_of_any_text_layout_are_text() -> None:
    large = pa.RecordBatch.from_pydict({"s": pa.array(["ab", None, "b"], pa.large_string())})
    texts = {
        "s": ["ab", None, "b"], "s = 'b'": [False, None, True], "s in ('b')": [False, None, True],
        "upper(s)": ["AB", None, "B"], "s || 'x'": ["abx", None, "bx"],
        "coalesce(s, '')": ["ab", "", "b"], "greatest(s, 'az')": ["az", "az", "b"],
    }  # fmt: skip
    for text, wanted in texts.items():
        assert parse(text).bind(large.schema).evaluate(large).to_pylist() == wanted


def test_nullability_follows_the_schema() -> None:
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int32())])
    nullable = {
        "a + 1": False, "a + b": True, "coalesce(b, a)": False, "b is null": False,
        "try_add(a, a)": True, "case when a > 1 then a end": True, "if(a > 1, a, 0)": False,
        "nullif(a, 1)": True, "b <=> a": False, "greatest(a, b)": False, "a in (1, null)": True,
    }  # fmt: skip
    assert {text: parse(text).bind(schema).nullable for text in nullable} == nullable


def test_projections_name_their_results() -> None:
    projection = Projection.bind(
        BATCH.schema, ["user", "ITEM AS thing", "user * 2 AS twice", "rating > 3", "pair.a"]
    )
    found = projection.evaluate(BATCH)
    assert found.schema.names == ["user", "thing", "twice", "(rating > 3)", "a"]
    assert found.schema == projection.schema
    assert found.column("twice").to_pylist() == [2, 4, None, 8]
    assert projection.columns == {"user", "item", "Rating", "pair"}


def test_a_star_stands_for_all_columns() -> None:
    projection = Projection.bind(BATCH.schema, ["*", "user + 1 AS next"])
    found = projection.evaluate(BATCH)
    assert found.schema.names == [*BATCH.schema.names, "next"]
    assert found.column("user").equals(BATCH.column("user"))


@pytest.mark.parametrize("texts", [["*", "1 AS USER"], ["1 AS item", "*"], ["user", "User"]])
def test_two_results_of_one_name_are_refused(texts: list[str]) -> None:
    with pytest.raises(DefinitionError, match="there are two results named"):
        Projection.bind(BATCH.schema, texts)


def test_predicates_take_null_for_false() -> None:
    predicate = Predicate.bind(BATCH.schema, "rating > 3")
    assert predicate.mask(BATCH).to_pylist() == [True, False, True, False]
    assert predicate.filter(BATCH).column("user").to_pylist() == [1, None]
    assert predicate.text == "(rating > 3)"
    assert predicate.columns == {"Rating"}
    assert Predicate.bind(BATCH.schema, "null").mask(BATCH).to_pylist() == [False] * 4
    with pytest.raises(DefinitionError, match="a condition must be TRUE or FALSE; this is BIGINT"):
        Predicate.bind(BATCH.schema, "user + 1")


def test_the_zone_is_that_of_the_session() -> None:
    text = "cast(at as string)"
    found = parse(text).bind(BATCH.schema, zone="America/New_York").evaluate(BATCH).to_pylist()
    assert found == [
        "1969-12-31 19:00:00",
        "1969-12-31 19:00:01",
        None,
        "1969-12-31 18:59:59.999999",
    ]
    local = parse("timestamp '2024-07-01'").bind(BATCH.schema, zone="America/New_York")
    assert local.type == TIMESTAMP
    assert local.zone == "America/New_York"
    assert parse("at + INTERVAL '1' HOUR").bind(BATCH.schema, zone="Asia/Tokyo").zone == "UTC"
    assert local.evaluate(BATCH[:1]).cast(pa.int64()).to_pylist() == [1_719_806_400_000_000]


def test_pyspark_is_not_imported() -> None:
    program = (
        "import sys, icestream.sql.expressions; assert not {'pyspark', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
