"""Run queries into sinks, one after the other, and report the rate of each.

Run as a program with a plan; prints one JSON line per run. It uses what every release of the
package offers and nothing else of this folder, so that an older checkout can be measured with it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import icestream as ice

_TRADES = "time timestamp, symbol int, price double, volume int"


def run(spark: Any, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one query over all its files into one sink."""
    folder = Path(plan["folder"])
    folder.mkdir(parents=True)
    writer = _result(spark, plan).writeStream.format(plan["sink"])
    writer = writer.options(**_options(plan["sink"], folder)).memory(plan["memory"])
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    rows, check = (0, 0.0) if plan["sink"] == "noop" else _read_back(plan, folder)
    found = {
        "query": plan["query"],
        "sink": plan["sink"],
        "reports": [
            {name: report[name] for name in ("batchId", "numInputRows", "durationMs")}
            for report in query.recentProgress
        ],
        "rows": rows,
        "check": check,
    }
    shutil.rmtree(folder)
    return found


def _result(spark: Any, plan: dict[str, Any]) -> Any:
    if plan["query"] == "vwap":
        files = spark.readStream.schema(_TRADES).option("maxFilesPerTrigger", plan["files"])
        trades = ice.stream(files.parquet(plan["input"]), time="time", slack="0 seconds")
        average = ice.weighted_avg("price", "volume").alias("vwap")
        return trades.window("1 hour", slide="event").groupBy("symbol").agg(average)
    files = spark.readStream.schema(plan["schema"]).option("maxFilesPerTrigger", plan["files"])
    calls = ice.stream(files.parquet(plan["input"]), time="timestamp", slack=plan["slack"])
    windows = calls.window(plan["window"], slide=plan["slide"])
    keys, chosen = plan["groupings"], [ice.count().alias("calls")]
    for name in plan["fields"]:
        chosen += [ice.sum(name).alias(f"sum_{name}"), ice.avg(name).alias(f"avg_{name}")]
    return windows.groupingSets([[key] for key in keys], *keys).agg(*chosen)


def _options(sink: str, folder: Path) -> dict[str, str]:
    if sink == "iceberg":
        return {
            "path": "bench.rows",
            "catalog.type": "sql",
            "catalog.uri": f"sqlite:///{folder}/catalogue.db",
            "catalog.warehouse": f"file://{folder}/warehouse",
        }
    return {} if sink == "noop" else {"path": str(folder / "table")}


def _read_back(plan: dict[str, Any], folder: Path) -> tuple[int, float]:
    """Return the rows of a table, and a sum over them that is the same in every order."""
    import duckdb  # noqa: PLC0415

    where = "warehouse/bench/rows" if plan["sink"] == "iceberg" else "table"
    value = "vwap" if plan["query"] == "vwap" else "calls"
    [(rows, total)] = duckdb.execute(
        f"select count(*), round(sum({value}), 3) from '{folder / where}/**/*.parquet'"
    ).fetchall()
    return int(rows), float(total)


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    session = ice.local_session(
        "icestream-bench", cores=asked["cores"], conf={"spark.sql.session.timeZone": "UTC"}
    )
    for one in asked["runs"]:
        print(json.dumps(run(session, one)), flush=True)
    session.stop()
