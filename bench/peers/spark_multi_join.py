"""Measure Spark's own inner joins of five streams, chained, with the RocksDB state store.

Run as `python -m bench.peers.spark_multi_join PLAN`; prints one JSON line per run of the plan.
Beyond Spark's defaults: changelog checkpoints and as many shuffle partitions as cores. There is no
bound on time and no watermark: like the other systems, Spark stores every row. It joins in the
order that is written: the chain of the query, or the order that stores the fewest rows.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark program uses

from bench.multi_join_rows import STREAMS, JoinStream
from bench.peers.spark_window import session
from bench.query_runs import measured, run_all


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one query over all its files."""

    def events(stream: JoinStream) -> DataFrame:
        return (
            spark.readStream.schema(stream.spark_schema)
            .option("maxFilesPerTrigger", plan["files_per_trigger"])
            .parquet(plan["inputs"][stream.name])
            .select(*stream.keys, stream.id)
        )

    a, b, c, d, e = map(events, STREAMS)
    if plan["reordered"]:
        cde = c.join(d, F.expr("c2 = d1")).join(e, F.expr("d2 = e1"))
        joined = cde.join(a, F.expr("c1 = a1")).join(b, F.expr("c1 = b1"))
    else:
        abc = a.join(b, F.expr("a1 = b1")).join(c, F.expr("a1 = c1"))
        joined = abc.join(d, F.expr("c2 = d1")).join(e, F.expr("d2 = e1"))
    query = (
        joined.select(*(stream.id for stream in STREAMS))
        .writeStream.format("parquet")
        .outputMode("append")
        .option("path", plan["output"])
        .option("checkpointLocation", plan["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return measured(query, plan)


if __name__ == "__main__":
    run_all(session, run)
