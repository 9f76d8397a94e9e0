"""A program as a user writes one: its types are checked against the installed wheel."""

from __future__ import annotations

from pyspark.sql import DataFrame

import icestream as ice


def revenue(orders: DataFrame) -> ice.Query:
    """Start a query over windows."""
    stream = ice.stream(orders, time="at", slack="5 seconds")
    result = stream.window("1 hour", slide="1 minute").groupBy("shop").agg(ice.sum("price"))
    writer = result.where("price > 0").writeStream.format("parquet").option("path", "out")
    return writer.option("checkpointLocation", "chk").memory("64 MB").start()


def pairs(orders: DataFrame) -> ice.Events:
    """Join a stream with itself."""
    events = ice.stream(orders, time="at").events()
    return events.select("shop").join(events.select("shop", "price"), on="shop", within="1 hour")


def told(query: ice.Query) -> str:
    """Say how far a query is."""
    progress = query.lastProgress
    return "nothing yet" if progress is None else str(progress["icestream"]["watermark"])
