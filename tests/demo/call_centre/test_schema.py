from __future__ import annotations

from icestream.demo.call_centre.distributions import STREAM
from icestream.demo.call_centre.schema import ARROW_SCHEMA, COLUMNS, SPARK_SCHEMA

BYTES = {"timestamp": 8, "bigint": 8, "int": 4, "boolean": 1}


def test_oracle_a_row_has_the_94_bytes_of_the_source() -> None:
    assert sum(BYTES[kind] for kind in COLUMNS.values()) == 94


def test_every_described_column_is_in_the_schema() -> None:
    assert {column.name for column in STREAM} <= set(ARROW_SCHEMA.names)


def test_spark_reads_the_same_columns() -> None:
    assert [part.split()[0] for part in SPARK_SCHEMA.split(", ")] == ARROW_SCHEMA.names
