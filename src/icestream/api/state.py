"""Reading the state of a query as a DataFrame, and writing a DataFrame as its state.

Idea: one task per shard restores the shard of the checkpoint in a scratch folder, within a budget,
and returns its rows as Arrow batches. This needs no code of the query and executes nothing from the
checkpoint.

Invariants:
1. The rows are those that `icestream state export` writes
   (`test_a_data_frame_has_the_rows_of_an_export`).
2. Rows that were written are read back (`test_a_data_frame_becomes_the_state`).

Limits: written rows pass through the driver and must fit into its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from icestream.core.units import parse_bytes
from icestream.inspect.erase import erase
from icestream.inspect.rewrite import rewrite
from icestream.inspect.state_rows import Reading
from icestream.runtime.spark.arrow_types import from_arrow_schema


def read_state(
    spark: SparkSession,
    checkpoint: str,
    version: int | None = None,
    *,
    operator: str | None = None,
    kept: str | None = None,
    memory: str | int = "256 MB",
) -> DataFrame:
    """Return the state in a checkpoint as a DataFrame.

    If one kind of rows is read, because the query has only one or `operator` and `kept` choose it,
    the columns are `__shard`, `__group` and those of the rows. Otherwise they are `operator`,
    `kept`, `shard`, `group`, `key` and `row`, the last two as JSON text.

    For windows, the rows are the open windows with their current values or, with `kept="panes"`,
    the panes they consist of; for grouped state, the rows of every group; for update streams, the
    keys with their waiting values.

        ice.read_state(spark, "checkpoints/kpis").orderBy("window.end").show()

    Args:
        spark: the session that reads.
        checkpoint: the `checkpointLocation` of a query, running or not, on a disk that all
            executors see.
        version: which version; the latest if left out. `icestream state show` lists the versions.
        operator: only the rows of this operator, as `icestream state show` names it.
        kept: only this kind of its rows.
        memory: how much memory restoring a shard may use.

    Examples:
        >>> ice.read_state(spark, "chk/start").columns
        ['__shard', '__group', 'window', 'serviceId', 'count']
    """
    location = checkpoint.removeprefix("file://")
    size = parse_bytes(memory)
    chosen = Reading(location, version, operator=operator, kept=kept, memory=size)
    shards = chosen.shards
    read = _Shards(location, chosen.commit.version, operator, kept, size)
    numbers = spark.createDataFrame([(shard,) for shard in shards], "shard int")
    spread = numbers.repartitionByRange(max(1, len(shards)), "shard")
    return spread.mapInArrow(read, from_arrow_schema(chosen.schema))


def write_state(
    rows: DataFrame,
    checkpoint: str,
    *,
    operator: str | None = None,
    kept: str | None = None,
    others: str = "drop",
    memory: str | int = "256 MB",
) -> int:
    """Replace state of a stopped query with edited rows; return the version that contains them.

    The rows have the columns that `read_state` returns for one kind of rows. A row belongs to the
    group in `__group` or, where that is null or dropped, to the group of its key columns. Earlier
    versions are retained as usual. If no group differs, nothing is written. For windows on a grid
    write `kept="panes"`, for update streams `kept="waiting"`.

        ages = ice.read_state(spark, "checkpoints/visits", kept="0: visits")
        ice.write_state(ages.where("count > 1"), "checkpoints/visits", kept="0: visits")

    Args:
        rows: the rows of all groups, or of some with `others="keep"`.
        checkpoint: the `checkpointLocation` of a query that is not running, on a local disk.
        operator: the operator whose rows they are, as `icestream state show` names it.
        kept: which kind of its rows.
        others: what happens to groups without a row: "drop" or "keep".
        memory: how much memory restoring a shard may use.

    Examples:
        >>> counted = events.groupApply("agent", lambda agent: agent.process(Counting()))
        >>> writer = counted.writeStream.format("noop").option("checkpointLocation", "chk/counted")
        >>> writer.trigger(availableNow=True).start().awaitTermination()
        >>> state = ice.read_state(spark, "chk/counted")
        >>> ice.write_state(state.withColumn("calls", state["calls"] + 100), "chk/counted")
        2
    """
    reading = Reading(
        checkpoint.removeprefix("file://"),
        operator=operator,
        kept=kept,
        memory=parse_bytes(memory),
    )
    return rewrite(reading, rows.toArrow(), others=others).version


def erase_key(checkpoint: str, key: Mapping[str, object], *, memory: str | int = "256 MB") -> int:
    """Erase one key of a stopped query; return how many groups had state of it.

    All groups of the key leave the state, the log is written again without them, and all earlier
    versions are deleted: afterwards the value is in no file of the checkpoint. Other keys keep
    their state. Rows that reached a sink, and Spark's own log of the source, are not changed.

    Args:
        checkpoint: the `checkpointLocation` of a query that is not running, on a local disk.
        key: key columns and their values. Of windows by several columns, some are enough.
        memory: how much memory restoring a shard may use.

    Examples:
        >>> counted = events.groupApply("agent", lambda agent: agent.process(Counting()))
        >>> writer = counted.writeStream.format("noop").option("checkpointLocation", "chk/erased")
        >>> writer.trigger(availableNow=True).start().awaitTermination()
        >>> ice.erase_key("chk/erased", {"agent": "a"})
        1
    """
    reading = Reading(checkpoint.removeprefix("file://"), memory=parse_bytes(memory))
    texts = {name: "null" if value is None else str(value) for name, value in key.items()}
    return erase(reading, texts).groups


@dataclass(frozen=True)
class _Shards:
    """Reads shards in a task."""

    location: str
    version: int
    operator: str | None
    kept: str | None
    memory: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reading = Reading(self.location, self.version, self.operator, self.kept, memory=self.memory)
        for batch in batches:
            yield from reading.batches(batch.column("shard").to_pylist())
