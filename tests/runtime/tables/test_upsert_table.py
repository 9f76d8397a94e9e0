from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError
from icestream.runtime.tables.delta import DeltaUpsertTable
from icestream.runtime.tables.iceberg import CATALOG, IcebergUpsertTable
from icestream.runtime.tables.layout import TableTarget
from icestream.runtime.tables.upsert_table import UpsertTable

WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
KEYS = {
    "text": [("user", pa.string())],
    "numbers": [("user", pa.int64()), ("price", pa.float64())],
    "windows": [("window", WINDOW), ("user", pa.string())],
    "windows alone": [("window", WINDOW)],
    "instants": [("at", pa.timestamp("us", "UTC")), ("day", pa.date32())],
    "nothing": [],
}


def delta(folder: Path, schema: pa.Schema, key: list[str]) -> UpsertTable:
    return DeltaUpsertTable(str(folder / "table"), schema, "someone-0", key)


def iceberg(folder: Path, schema: pa.Schema, key: list[str]) -> UpsertTable:
    options = {
        CATALOG: "here",
        f"{CATALOG}.type": "sql",
        f"{CATALOG}.uri": f"sqlite:///{folder}/catalogue.db",
        f"{CATALOG}.warehouse": f"file://{folder}/warehouse",
    }
    target = TableTarget("someone-0", options=options)
    return IcebergUpsertTable("db.newest", schema, target, key)


def held(table: Any) -> pa.Table:
    """Return the rows of a table, as a reader sees them."""
    if isinstance(table, IcebergUpsertTable):
        table._latest()
        return table._table.scan().to_arrow()
    return pa.table(table._table.to_pyarrow_table())


def value_of(kind: pa.DataType, chance: random.Random) -> Any:
    if chance.random() < 0.2:
        return None
    number = chance.randrange(5)
    if pa.types.is_struct(kind):
        return {"start": number * 10**6, "end": (number + 1) * 10**6}
    if pa.types.is_string(kind):
        return f"it's {number}"
    if pa.types.is_floating(kind):
        return math.nan if number == 4 else number / 4
    return number


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("opened", [delta, iceberg])
def test_replaying_versions_changes_nothing_in_an_upserted_table(
    opened: Callable[..., UpsertTable], kind: str, tmp_path: Path
) -> None:
    """Rows by key beside a dictionary, with keys that come, change, go and come again."""
    if opened is delta and kind == "numbers":
        pytest.skip("Delta holds that NaN is not NaN")
    chance, keys = random.Random(kind), pa.schema(KEYS[kind])
    schema = pa.schema([*keys, ("total", pa.int64())])
    both = pa.schema([*schema, ("change", pa.int32())])
    wanted: dict[str, Any] = {}
    versions: list[pa.Table] = []
    for version in range(8):
        rows = {}
        for _ in range(chance.randrange(6)):
            key = {each.name: value_of(each.type, chance) for each in keys}
            row = key | {"total": chance.randrange(100), "change": chance.choice([1, 1, -1])}
            rows[str(key)] = row
        versions.append(pa.Table.from_pylist(list(rows.values()), both))
        for identity, row in rows.items():
            wanted.pop(identity, None)
            if row["change"] > 0:
                wanted[identity] = {name: row[name] for name in schema.names}
        table = opened(tmp_path, schema, keys.names)
        for again in (max(0, version - 1), version, version):
            table.merge(again, versions[again])
        found = held(table).select(schema.names).cast(schema)
        expected = pa.Table.from_pylist(list(wanted.values()), schema)
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))


@pytest.mark.parametrize("opened", [delta, iceberg])
def test_rows_that_are_not_unique_by_their_key_are_refused(
    opened: Callable[..., UpsertTable], tmp_path: Path
) -> None:
    schema = pa.schema([("user", pa.string()), ("total", pa.int64())])
    table = opened(tmp_path, schema, ["user"])
    with pytest.raises(DefinitionError, match="not unique by user"):
        table.merge(0, pa.Table.from_pylist([{"user": "a"}, {"user": "a"}], schema))
