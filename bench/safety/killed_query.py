"""The program that is killed: a window query on Spark that continues where its last run ended.

Idea: it reads one file per batch, writes a table, stores late events, and at the end lists
everything that a reader of the table's log sees, and how many rows the table's folder has. State
and table may be in an object store.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import icestream as ice
from icestream.runtime.tables.layout import OpenTableFile
from icestream.runtime.tables.sink_log import SinkLog
from icestream.state.stores.store_files import StoreFiles

#: the bucket, if there is a store
BUCKET = "s3://bucket"


def in_store(own: Path, part: str) -> str:
    """Return where a part of a run is in the store."""
    return f"{BUCKET}/{own.name}/{part}"


def run(
    folder: Path, name: str, sink: str = "parquet", store: Mapping[str, str] | None = None
) -> None:
    """Run the query over `folder`/in to its end; state and output are in `folder`/`name`."""
    own = folder / name
    own.mkdir(exist_ok=True)
    spark = ice.local_session("killed", memory="1g")
    events = (
        spark.readStream.schema("ts timestamp, key string, value double")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "in"))
    )
    totals = (
        ice.stream(events, time="ts", slack="3 seconds")
        .window("1 minute", slide="5 seconds")
        .groupBy("key")
        .agg(
            ice.count().alias("n"),
            ice.sum("value").alias("total"),
            ice.min("value").alias("least"),
            ice.max("value").alias("most"),
        )
    )
    query = (
        totals.writeStream.format(sink)
        .options(**_options(sink, own, store))
        .option("checkpointLocation", str(own / "checkpoint"))
        .option("localDir", str(own / "local"))
        .option("lateEvents", str(own / "late"))
        .option("flush", True)
        .shards(2)
        .memory("64 MB")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seen = [f"late {row}" for row in spark.read.parquet(str(own / "late")).collect()]
    out = str(own / "out") if store is None else in_store(own, "out")
    seen += [f"out {row}" for row in _by_the_log(spark, sink, own, out, store)]
    seen += [
        f"rows in the folders: {_in_folder(out, store)}, {_in_folder(str(own / 'late'), None)}"
    ]
    (own / "seen.txt").write_text("\n".join(sorted(seen)), encoding="utf-8")


def _options(sink: str, own: Path, store: Mapping[str, str] | None) -> dict[str, str]:
    """Return the options of the table, and of the store if there is one."""
    path = str(own / "out") if store is None else in_store(own, "out")
    options = {f"storage.{key}": value for key, value in (store or {}).items()}
    if store is not None:
        options["stateLocation"] = in_store(own, "state")
    if sink != "iceberg":
        return {"path": path, **options}
    catalogue = {f"catalog.{key}": value for key, value in _catalogue(own, store).items()}
    return {"path": "out.rows", **catalogue, **options}


def _catalogue(own: Path, store: Mapping[str, str] | None) -> dict[str, str]:
    warehouse = f"file://{own}" if store is None else in_store(own, "")
    return {
        "type": "sql",
        "uri": f"sqlite:///{own}/catalogue.db",
        "warehouse": warehouse.rstrip("/"),
    }


def _delta(out: str, store: Mapping[str, str] | None) -> list[Any]:
    from deltalake import DeltaTable  # noqa: PLC0415 - only this sink needs it

    options = None if store is None else {"allow_http": "true", **store}
    return list(DeltaTable(out, storage_options=options).to_pyarrow_table().to_pylist())


def _iceberg(own: Path, store: Mapping[str, str] | None) -> list[Any]:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - only this sink needs it

    names = {"access_key_id": "access-key-id", "secret_access_key": "secret-access-key"}
    options = {f"s3.{names.get(key, key)}": value for key, value in (store or {}).items()}
    table = load_catalog("default", **_catalogue(own, store), **options).load_table("out.rows")
    return list(table.scan().to_arrow().to_pylist())


def _by_the_log(
    spark: Any, sink: str, own: Path, out: str, store: Mapping[str, str] | None
) -> list[Any]:
    """Return the rows of the table as a reader of its log sees them."""
    if sink == "delta":
        return _delta(out, store)
    if sink == "iceberg":
        return _iceberg(own, store)
    if store is None:
        return list(spark.read.parquet(out).collect())
    files = StoreFiles(store)
    return [
        row
        for path in SinkLog(files, out).files()
        for row in pq.read_table(OpenTableFile(files, path)).to_pylist()
    ]


def _in_folder(folder: str, store: Mapping[str, str] | None) -> int:
    """Return the rows of all files in the folder of a table, whether its log has them or not."""
    import duckdb  # noqa: PLC0415

    if store is not None:
        files = StoreFiles(store)
        found = [f"{folder}/{path}" for path in files.walk(folder) if path.endswith(".parquet")]
        return sum(pq.read_metadata(OpenTableFile(files, path)).num_rows for path in found)
    [(rows,)] = duckdb.execute(f"select count(*) from '{folder}/**/*.parquet'").fetchall()
    return int(rows)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    run(Path(asked["folder"]), asked["name"], asked["sink"], asked.get("store"))
