"""From writers to a running query: the driver, the delivery of its rows, the tables of mode `now`.

Idea: the first writer has the settings of the query. A version's rows go to the sink of each
writer, and to the table of a view that keeps the rows that hold; rows that were refused go to
theirs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql.types import DoubleType, StringType, StructField, StructType

from icestream.api.query_warnings import warn_of_late_events, warn_of_revisions
from icestream.api.shared_plan import BuiltQuery, build
from icestream.core.errors import DefinitionError
from icestream.dashboard.server import shared_page
from icestream.operators.dataflow.results import CHANGE
from icestream.operators.latest.step import UPDATED
from icestream.plan.computation import Computation
from icestream.runtime.driver import Delivery, Driver
from icestream.runtime.exchange.refused_rows import REASON, ROW, SOURCE_NAME
from icestream.runtime.spark.arrow_types import to_arrow_schema
from icestream.runtime.spark.failures import SparkFiles
from icestream.runtime.spark.query import Query
from icestream.runtime.spark.sink import (
    FileSink,
    ResultRows,
    Sink,
    as_they_are,
    current_frame,
    hand_out,
    once,
    table_of,
)
from icestream.runtime.tables.append_table import AppendTable
from icestream.runtime.tables.current_table import AGE, CurrentTable
from icestream.runtime.version.end_mark import EndMark
from icestream.runtime.version.history import QueryHistory
from icestream.runtime.version.settings import Settings
from icestream.state.files import Files
from icestream.state.versions.table_files import LATE_VIEW

if TYPE_CHECKING:
    from icestream.api.writer import StreamWriter

#: environment variable with the default of `option("ui", ...)`
SHOWN = "ICESTREAM_UI"
#: output modes of rows that hold, by key: those of keys that changed, or all
TABLES = ("now", "complete")
#: output modes of rows that hold, with a table of them or without
HELD = ("update", *TABLES)


def launch(outputs: Sequence[tuple[StreamWriter, Sink]]) -> Query:
    """Run the statements of some writers as one query, with the settings of the first."""
    lead = outputs[0][0]
    built = lead._built
    modes = [each._mode for each, _ in outputs]
    statements = [each._statement for each, _ in outputs if each._statement is not None]
    if len(statements) == len(outputs) > 1:
        built = build(statements)
    elif len(outputs) > 1:
        assert lead._together is not None
        built = lead._together([each._result for each, _ in outputs], modes)
    if not built.events.isStreaming:
        msg = (
            "a query starts over a stream, but this DataFrame is a batch: read it with "
            "spark.readStream instead of spark.read, or build state from it with bootstrap()"
        )
        raise DefinitionError(msg)
    if "lateEvents" in lead._options and built.whole is not None:
        built = built.whole()
    lead = replace(lead, _built=built)
    checkpoint, paced = lead._checkpoint(), lead._paced()
    lead._flushes()
    late_sink = lead._late_sink()
    found = [
        # the sink of a table by key gets rows as they are
        table_of(sink, as_they_are if mode in TABLES else each._shape, lead._spark, columns)
        for (each, sink), mode, columns in zip(outputs, modes, built.rows, strict=True)
    ]
    late_table = None if late_sink is None else late_sink.direct
    tables = [each for each in (*found, late_table) if each is not None]
    driver, plan, settings, files = paced._driver(built, checkpoint, modes, tables)
    try:
        driver.store.make_identity(lead._checkpoint_identity)
        return _run(outputs, found, lead, paced, driver, plan, settings, files, late_sink)
    except BaseException:
        driver.close()
        raise


def _run(
    outputs: Sequence[tuple[StreamWriter, Sink]],
    written_by_tasks: Sequence[AppendTable | None],
    lead: StreamWriter,
    paced: StreamWriter,
    driver: Driver[DataFrame],
    plan: Computation,
    settings: Settings,
    files: Files,
    late_sink: FileSink | None,
) -> Query:
    """Start a query that delivers the rows of a driver to the sinks."""
    checkpoint, flush = lead._checkpoint(), lead._flushes()
    spark, built = lead._spark, lead._built
    safe = [once(sink, files, settings.root, number) for number, (_, sink) in enumerate(outputs)]
    current = {
        number: CurrentTable.of(files, settings.root, number)
        for number, (writer, _) in enumerate(outputs)
        if writer._mode in TABLES
    }
    for each in current.values():
        each.roll_back(-1 if driver.last is None else driver.last.version)
    tables = {
        number: partial(
            current_frame,
            spark,
            each,
            _held_columns(built, number),
            outputs[number][0]._shape,
        )
        for number, each in current.items()
    }

    def rows_of(delivery: Delivery, number: int) -> ResultRows:
        writer = outputs[number][0]
        written = [each for each in delivery.commit.tables if each.view == number]
        columns, storage = built.rows[number], writer._table_files
        return ResultRows(
            spark, files, delivery.results, columns, writer._shape, number, written, storage
        )

    def hold(delivery: Delivery, number: int, rows: ResultRows) -> None:
        schema, key = to_arrow_schema(built.rows[number]), outputs[number][0]._table_key()
        changed = (table for read in rows.readers() for table in read())
        updated = UPDATED if built.plan.has_queue else None
        current[number].apply(delivery.commit.version, changed, schema, key, updated)

    # Spark does not send the last batch again if only a table has lost it
    for delivery in driver.last_again() if current else ():
        for number in current:
            hold(delivery, number, rows_of(delivery, number))

    def deliver(delivery: Delivery) -> None:
        for number, (writer, _) in enumerate(outputs):
            rows = rows_of(delivery, number)
            if number in current:
                hold(delivery, number, rows)
                if writer._mode == "complete":
                    safe[number].deliver(tables[number](), delivery.commit.version - 1)
                    continue
                rows = replace(rows, shape=as_they_are)
            hand_out(safe[number], rows, delivery, written_by_tasks[number])
        if late_sink is not None:
            written = [each for each in delivery.commit.tables if each.view == LATE_VIEW]
            refused = ResultRows(
                spark,
                files,
                delivery.late,
                columns_of_refused(built, bad=lead._quarantines),
                tables=written,
                storage=lead._table_files,
            )
            hand_out(late_sink, refused, delivery, late_sink.direct)
        elif delivery.progress:
            warn_of_late_events(plan, delivery.progress, checkpoint)
        if delivery.progress:
            warn_of_revisions(plan, delivery.progress, checkpoint)

    about = {"name": lead._name, "plan": plan.describe(), "shards": settings.shards}
    state = lead._state_location(checkpoint)
    end_mark = EndMark(files, settings.root) if built.plan.has_queue else None
    history = QueryHistory(state, about)
    spark_files = SparkFiles(f"{checkpoint}/spark", partial(lead._files, checkpoint))
    query = Query(
        driver, deliver, history, spark_files, flush=flush, tables=tables, end_mark=end_mark
    )
    if lead._is_set("ui", os.environ.get(SHOWN, "false")):
        query.uiWebUrl = shared_page(state).url
        print(f"icestream: the dashboard of the query is at {query.uiWebUrl}", file=sys.stderr)
    spark_folder = f"{checkpoint if '://' in checkpoint else f'file://{checkpoint}'}/spark"
    return query.start(lambda batch: paced._begin(built.read, batch, spark_folder))


def _held_columns(built: BuiltQuery[Any], view: int) -> StructType:
    """Return the columns of the table of a view in output mode `now`."""
    columns = [field for field in built.rows[view] if field.name != CHANGE]
    aged = [StructField(AGE, DoubleType())] if built.plan.has_queue else []
    return StructType([*columns, *aged])


def columns_of_refused(built: BuiltQuery[Computation], *, bad: bool) -> StructType:
    """Return what a launched query stores of refused rows: columns, source, reason and text."""
    kept = built.kept if built.kept is not None else StructType()
    texts = (SOURCE_NAME, REASON, ROW) if bad else (SOURCE_NAME, REASON)
    return StructType([*kept, *(StructField(name, StringType()) for name in texts)])
