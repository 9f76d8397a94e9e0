"""What Spark's own `window()` takes for a minute of the demo's events.

Idea: Spark copies an event into every window that it belongs to: 8,640 copies with a window of 24
hours that slides every 10 seconds. The rows of one minute in the middle of the stream are enough to
see what that costs. They are aggregated as a batch, which is generous: as a stream Spark would keep
the groups of all these windows in its state store as well.
"""

from __future__ import annotations

import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that PySpark's users know

from icestream.demo.call_centre.display import CallCenterStatus
from icestream.demo.call_centre.kpis import ALL, GROUPINGS, shown_figures

MINUTE = 60_000_000


def seconds_of_spark(spark: SparkSession, events: Path, status: CallCenterStatus) -> float:
    """Return the seconds that Spark takes for the figures over one minute of the events."""
    middle = (status.begin + status.until) // 2
    since, before = F.timestamp_micros(F.lit(middle)), F.timestamp_micros(F.lit(middle + MINUTE))
    time_of = F.col("timestamp")
    minute = spark.read.parquet(str(events)).where((time_of >= since) & (time_of < before))
    windows = F.window("timestamp", status.window, status.slide)
    keys = GROUPINGS if status.grouping == ALL else [status.grouping]
    figures = [
        getattr(F, figure.function)(figure.field).alias(figure.column)
        for figure in shown_figures(status.grouping)
    ]
    began = time.monotonic()
    for key in keys:
        minute.groupBy(windows, key).agg(*figures).write.format("noop").mode("overwrite").save()
    return time.monotonic() - began
