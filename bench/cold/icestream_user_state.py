"""Measure user code with state in Icestream: running totals by key, in both forms.

Run as `python -m bench.cold.icestream_user_state PLAN`; prints one JSON line per run of
the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

import icestream as ice
from bench.cold import keyed_rows
from bench.query_runs import icestream_session, measured, run_all, run_to_the_end

STATE = "n long, total double"
OUTPUT = "key long, n long, total double"


class ColumnTotals(ice.VectorisedProcessor):
    """Count and sum of each key so far, of many keys at a time."""

    state = {"seen": ice.ValueState(STATE)}  # noqa: RUF012 - as users write it
    output = OUTPUT

    def process(self, batch: Any, state: Any) -> Any:
        """Add the rows of all keys in the batch."""
        old = state.seen.numpy()
        n = old["n"] + batch.sizes
        total = old["total"] + batch.reduce(np.add, "value")
        state.seen.set([n, total])
        return [batch.keys["key"], n, total]


class GroupTotals(ice.StatefulProcessor):
    """The same, of one key at a time."""

    output = OUTPUT

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self._seen = handle.getValueState("seen", STATE)

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[dict[str, Any]]:  # noqa: N802 - PySpark's name
        """Add the rows of a key."""
        n, total = self._seen.get() or (0, 0.0)
        n, total = n + len(rows), total + sum(rows["value"])
        self._seen.update((n, total))
        yield {"key": key[0], "n": n, "total": total}


#: processors by the name of their form
FORMS = {"vectorised": ColumnTotals, "per group": GroupTotals}


def run(spark: SparkSession, plan: dict[str, Any]) -> dict[str, Any]:
    """Run one query over all its files."""
    files = ice.files(
        spark,
        plan["input"],
        "parquet",
        schema=keyed_rows.SPARK_SCHEMA,
        maxFilesPerTrigger=plan["files_per_trigger"],
    )
    processor = FORMS[plan["form"]]()
    writer = (
        ice.stream(files, time="ts", slack=plan["slack"])
        .events()
        .select("key", "value")
        .groupApply("key", lambda group: group.process(processor))
        .writeStream
    )
    query = run_to_the_end(writer, plan)
    return measured(query, plan, phases=True)


if __name__ == "__main__":
    run_all(icestream_session, run)
