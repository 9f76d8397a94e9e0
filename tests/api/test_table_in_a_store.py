"""Queries on Spark whose tables are in an object store, without any connector of Hadoop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import icestream as ice
from icestream.core.errors import DefinitionError
from icestream.runtime.tables.layout import OpenTableFile
from icestream.runtime.tables.sink_log import SinkLog
from icestream.state.stores.store_files import StoreFiles
from tests.api.test_state_location import SCHEMA, expected, objects, query_over, write_events
from tests.fixtures.object_store import BUCKET, KEY, SECRET, ObjectStoreServer

pytestmark = pytest.mark.spark


def table_rows(sink: str, place: str, folder: Path, store: ObjectStoreServer) -> pa.Table:
    """Return the rows that a reader of the table's log finds."""
    if sink == "delta":
        from deltalake import DeltaTable

        options = {"allow_http": "true", **store.options}
        return DeltaTable(place, storage_options=options).to_pyarrow_table()
    if sink == "iceberg":
        from pyiceberg.catalog import load_catalog

        keys = {"s3.access-key-id": KEY, "s3.secret-access-key": SECRET}
        where = {"s3.endpoint": store.endpoint, "s3.region": "us-east-1"}
        uri = f"sqlite:///{folder}/catalogue.db"
        catalogue = load_catalog("default", type="sql", uri=uri, **keys, **where)
        return catalogue.load_table("db.rows").scan().to_arrow()
    files = StoreFiles(store.options)
    return pa.concat_tables(
        pq.read_table(OpenTableFile(files, path), coerce_int96_timestamp_unit="us")
        for path in SinkLog(files, place).files()
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("sink", ["parquet", "delta", "iceberg"])
def test_oracle_a_table_in_a_store(
    sink: str, spark: SparkSession, object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    place, late = (f"s3://{BUCKET}{tmp_path}/{part}" for part in ("table", "late"))
    options: dict[str, Any] = {"path": place, "lateEvents": late}
    if sink == "iceberg":
        options["path"] = "db.rows"
        options["catalog.type"] = "sql"
        options["catalog.uri"] = f"sqlite:///{tmp_path}/catalogue.db"
        options["catalog.warehouse"] = place
    (tmp_path / "in").mkdir()
    writer = query_over(spark, tmp_path, str(tmp_path / "state"), object_store.options)
    writer = writer.format(sink)
    for name, value in options.items():
        writer = writer.option(name, value)
    with object_store.failing(0.03, 1) as faults:
        faults.delay = 0.02
        for number in range(2):
            write_events(tmp_path / "in", number)
            writer.start().awaitTermination()
    found = table_rows(sink, place, tmp_path, object_store)
    rows = spark.createDataFrame(found).select("window.start", "key", "n", "total")
    assert sorted(map(str, rows.collect())) == expected(spark, tmp_path)
    stored = dict(objects(object_store))
    texts = [data.decode("latin1") for data in stored.values()]
    texts += [each.read_bytes().decode("latin1") for each in tmp_path.rglob("*") if each.is_file()]
    assert not any(secret in text for secret in (KEY, SECRET) for text in texts)


def test_rows_that_spark_changes_reach_a_table_in_a_store(
    spark: SparkSession, object_store: ObjectStoreServer, tmp_path: Path
) -> None:
    place = f"s3a://{BUCKET}{tmp_path}/changed"
    write_events(tmp_path / "in", 0)
    events = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
    counts = ice.stream(events, time="time").window("30 seconds").groupBy("key").count()
    writer = counts.where("key <> 'key-0'").writeStream.format("parquet").option("path", place)
    for key, value in object_store.options.items():
        writer = writer.option(f"storage.{key}", value)
    writer = writer.option("checkpointLocation", str(tmp_path / "chk")).option("flush", True)
    writer.trigger(availableNow=True).start().awaitTermination()
    found = table_rows("parquet", place, tmp_path, object_store)
    assert {*found.column("key").to_pylist()} == {"key-1", "key-2"}


def test_options_of_a_store_that_nothing_uses_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_events(tmp_path / "in", 0)
    writer = query_over(spark, tmp_path, str(tmp_path / "state"), {"region": "eu-central-1"})
    with pytest.raises(DefinitionError, match=r"'storage\.\*' are for object stores"):
        writer.start()
