"""Folding by Spark SQL before rows leave the JVM, if that pays.

Idea: sending a row from the JVM to Python costs more than folding it. If many events share a
(group, pane), `groupBy(keys, pane)` in Spark SQL sends one row for all of them. Whether that pays
is measured, as events per entry of the batches so far.

Invariants:
1. Rows folded by Spark give the same entries as events do, bit for bit
   (`test_oracle_folding_by_spark_gives_the_same_rows`).
2. Times without a zone are read as UTC, whatever the zone of the session
   (`test_oracle_spark_folds_times_without_a_zone_alike_in_every_zone`).
3. The choice is made from past batches and changes no result.

Limits: Python folds sums of floats and moments (Spark's sums round), decimals, grouping sets, late
events that are stored, and functions of pairs or of the order of events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from icestream.operators.folding.fields import Field
from icestream.operators.folding.fold import partial_name
from icestream.plan.grid.lower import takes_tuples, window_spec
from icestream.plan.nodes.queries import SOURCE, TIME, Plan
from icestream.runtime.exchange.parcels import SplitReport
from icestream.runtime.ingest.reception import IngestTask
from icestream.runtime.work.windows.ingest import EVENTS, LATEST, PANE, FoldedIngest, Ingest

#: events per entry above which folding by Spark is chosen
WORTH_IT = 8.0
#: events in a batch below which another stage costs more than it saves
LEAST_EVENTS = 50_000

#: the SQL of the partial columns of each kind of field that Spark can fold
_PARTIALS = {
    "rows": ("count(1)",),
    "valid": ("count({x})",),
    "sum_i64": ("sum(cast({x} as bigint))",),
    "sum_i128": ("sum({x} & 4294967295L)", "sum(shiftright({x}, 32))"),
    "min": ("min({x})",),
    "max": ("max({x})",),
}
#: Spark treats -0.0 and 0.0 as one value; these find out which zeros a float column has
_ZEROS = {
    "min": "bool_or({x} = 0 and cast({x} as string) = '-0.0')",
    "max": "bool_or({x} = 0 and cast({x} as string) = '0.0')",
}
#: microseconds of the time column with a zone, and of one without, whose wall time is UTC
_MICROS = f"unix_micros({TIME})"
_WALL_MICROS = f"({TIME} - timestamp_ntz'1970-01-01 00:00:00') div interval '0.000001' second"
#: with this setting, the difference of two times has another type
_LEGACY_INTERVALS = "spark.sql.legacy.interval.enabled"


@dataclass
class Prefold:
    """Chooses where events are folded, from measurements of the last batch."""

    #: events per entry in the last batch with events, and its number of events
    ratio: float = 0.0
    events: int = 0

    def choose(self, ingest: IngestTask, batch: DataFrame) -> tuple[DataFrame, IngestTask]:
        """Return what the ingest tasks read, and the task itself."""
        worth_it = self.ratio >= WORTH_IT and self.events >= LEAST_EVENTS
        if not isinstance(ingest, Ingest) or not worth_it:
            return batch, ingest
        kept = ingest.raw_events_ordinal is not None
        if kept or not can_fold(ingest.plan):
            return batch, ingest
        legacy = batch.sparkSession.conf.get(_LEGACY_INTERVALS) == "true"
        if legacy and ingest.plan.time.tz is None:
            return batch, ingest
        return fold(ingest, batch), FoldedIngest(ingest)

    def learn(self, reports: Sequence[SplitReport]) -> None:
        """Record how many events shared an entry."""
        entries = sum(report.entries for report in reports)
        if entries:
            self.events = sum(report.rows for report in reports)
            self.ratio = self.events / entries


def can_fold(plan: Plan) -> bool:
    """Return whether Spark SQL can prefold this plan's events."""
    decimals = any(pa.types.is_decimal(field.type) for field in plan.inputs)
    if takes_tuples(plan) or not plan.one_grouping or plan.late != "drop" or decimals:
        return False
    fields = window_spec(plan).layout.fields
    return all(field.kind in _PARTIALS and not field.others for field in fields)


def fold(ingest: Ingest, batch: DataFrame) -> DataFrame:
    """Prefold by Spark SQL: one row per (source, group, pane) with columns for each field."""
    plan = ingest.plan
    spec = window_spec(plan)
    grid = spec.grid
    micros = _MICROS if plan.time.tz else _WALL_MICROS
    since = f"try_subtract({micros}, {grid.origin}L)" if grid.origin else micros
    # a time whose pane does not fit into 64 bits has no pane; the reader of the row refuses it
    pane = f"try_subtract({since}, pmod({since}, {grid.pane}L)) div {grid.pane}L"
    parts = [
        sf.count(sf.lit(1)).alias(EVENTS),
        sf.expr(f"max({micros})").alias(LATEST),
        *(
            sf.expr(sql).alias(partial_name(field, part))
            for field in spec.layout.fields
            for part, sql in enumerate(_partials(field, plan.inputs))
        ),
    ]
    keys = [sf.col(f"k{i}") for i in range(len(plan.keys))]
    folded = batch.groupBy(sf.col(SOURCE), sf.expr(pane).alias(PANE), *keys).agg(*parts)
    # a session may have hundreds of shuffle partitions, each of which would be a task here
    return folded.coalesce(batch.sparkSession.sparkContext.defaultParallelism)


def _partials(field: Field, inputs: pa.Schema) -> tuple[str, ...]:
    """Return the SQL of a field's partial columns."""
    parts = _PARTIALS[field.kind]
    if field.kind in _ZEROS and pa.types.is_floating(inputs.field(field.column).type):
        parts = (*parts, _ZEROS[field.kind])
    return tuple(part.format(x=field.column) for part in parts)
