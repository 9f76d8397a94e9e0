"""Input for Spark queries that are tested: a folder of Parquet files, one micro-batch each.

Idea: the same files are a stream for the query and a batch for Spark, which is the oracle. Files
are dated in the order they were added, which is the order Spark's file source takes them in.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from icestream.testing.oracles.arrivals import Row


class Feed:
    """Tables of events, each a micro-batch."""

    def __init__(self, spark: SparkSession, folder: str, *tables: pa.Table) -> None:
        """Begin with some tables."""
        self._spark = spark
        self._folder = folder
        self._count = 0
        os.makedirs(folder)
        for table in tables:
            self.add(table)

    def add(self, table: pa.Table) -> None:
        """Add one micro-batch."""
        name = f"{self._count:06d}.parquet"
        hidden, seen = (os.path.join(self._folder, start + name) for start in (".", ""))
        pq.write_table(table, hidden)
        os.utime(hidden, (1_000_000_000 + self._count,) * 2)
        os.rename(hidden, seen)
        self._count += 1

    def batch(self) -> DataFrame:
        """Return all events at once."""
        return self._spark.read.parquet(self._folder)

    def stream(self) -> DataFrame:
        """Return the events as a stream."""
        reader = self._spark.readStream.schema(self.batch().schema)
        return reader.option("maxFilesPerTrigger", 1).parquet(self._folder)


def rows(frame: DataFrame, keys: Sequence[str] = ()) -> list[Row]:
    """Return rows as tuples: start and end of the window, the keys, then the other columns."""
    table = frame.toArrow()
    window = table.column("window").combine_chunks()
    others = [name for name in table.column_names if name not in ("window", *keys)]
    columns = [
        window.field("start").to_pylist(),
        window.field("end").to_pylist(),
        *(table.column(name).to_pylist() for name in (*keys, *others)),
    ]
    return [tuple(map(_frozen, row)) for row in zip(*columns, strict=True)]


def _frozen(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, dict) else value
