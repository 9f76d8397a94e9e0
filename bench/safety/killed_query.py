"""The program that is killed: a window query on Spark that continues where its last run ended.

Idea: it reads one file per batch, writes a table, stores late events, and at the end lists
everything that a reader of the table's log sees, and how many rows the table's folder has.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import icestream as ice


def run(folder: Path, name: str, sink: str = "parquet") -> None:
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
        .options(**_options(sink, own))
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
    seen += [f"out {row}" for row in _by_the_log(spark, sink, own)]
    seen += [f"rows in the folder: {_in_folder(own, part)}" for part in ("out", "late")]
    (own / "seen.txt").write_text("\n".join(sorted(seen)), encoding="utf-8")


def _options(sink: str, own: Path) -> dict[str, str]:
    if sink != "iceberg":
        return {"path": str(own / "out")}
    catalogue = {f"catalog.{key}": value for key, value in _catalogue(own).items()}
    return {"path": "out.rows", **catalogue}


def _catalogue(own: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{own}/catalogue.db", "warehouse": f"file://{own}"}


def _by_the_log(spark: Any, sink: str, own: Path) -> list[Any]:
    """Return the rows of the table as a reader of its log sees them."""
    if sink == "delta":
        from deltalake import DeltaTable  # noqa: PLC0415 - only this sink needs it

        return list(DeltaTable(str(own / "out")).to_pyarrow_table().to_pylist())
    if sink == "iceberg":
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415

        table = load_catalog("default", **_catalogue(own)).load_table("out.rows")
        return list(table.scan().to_arrow().to_pylist())
    return list(spark.read.parquet(str(own / "out")).collect())


def _in_folder(own: Path, part: str) -> int:
    """Return the rows of all files in the folder of a table, whether its log has them or not."""
    import duckdb  # noqa: PLC0415

    [(rows,)] = duckdb.execute(f"select count(*) from '{own / part}/**/*.parquet'").fetchall()
    return int(rows)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    run(Path(asked["folder"]), asked["name"], asked["sink"])
