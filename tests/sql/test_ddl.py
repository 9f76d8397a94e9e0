from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.sql.ddl import schema_of

SPARK_TYPES = [
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(10,0)",
    "decimal(38,18)",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "array<bigint>",
    "map<string,array<double>>",
    "struct<a:bigint,b:struct<c:string>>",
]


@pytest.mark.parametrize("text", SPARK_TYPES)
def test_parity_types_are_those_of_spark(text: str) -> None:
    from icestream.runtime.spark.arrow_types import from_arrow_type, to_arrow_type

    kind = schema_of(f"x {text}").field("x").type
    spark = from_arrow_type(kind)
    assert spark.simpleString() == text
    assert to_arrow_type(spark) == kind


def test_other_names_of_types_are_understood() -> None:
    schema = schema_of("a long, b integer,c REAL, d: dec(4, 2), `e f``g` string NOT NULL, h byte")
    assert schema == pa.schema(
        [
            pa.field("a", pa.int64()),
            pa.field("b", pa.int32()),
            pa.field("c", pa.float32()),
            pa.field("d", pa.decimal128(4, 2)),
            pa.field("e f`g", pa.string(), nullable=False),
            pa.field("h", pa.int8()),
        ]
    )


def test_an_arrow_schema_is_taken_as_it_is() -> None:
    schema = pa.schema([("n", pa.uint16())])
    assert schema_of(schema) is schema


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the end"),
        ("n", "the end"),
        ("n lung", "'lung' is not a type"),
        ("n long total double", "expected ','"),
        ("n long,", "the end"),
        ("n array<long", "expected '>'"),
        ("n decimal(50,2)", "does not exist"),
        ("n decimal(a)", "expected a number"),
        ("n long not here", "NOT must be followed by NULL"),
        ("n long, n long", "same name"),
        (", long", "expected a column name"),
        ("n long; m long", "';' has no meaning"),
    ],
)
def test_unreadable_schemas_are_refused_with_an_example(text: str, why: str) -> None:
    with pytest.raises(DefinitionError, match="write for example") as error:
        schema_of(text)
    assert why in str(error.value)


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(DefinitionError, match="a schema must be text"):
        schema_of(["n long"])
