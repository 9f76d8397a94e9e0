"""Every public function has an example in its docstring, and all of them run.

The examples take some names as given: `spark`, `df`, a stream `calls`, the same as `events`, its
groups `hourly`, a result `kpis` with a running `query`, counts of events `busy` and of a job
`counted`, a processor `Counting`, and a queue `updates` with a value of each of two keys.
"""

from __future__ import annotations

import doctest
import inspect
import io
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.api.update_result import UpdateResult
from icestream.api.updates import LatestBy
from icestream.core.errors import IcestreamError
from tests.fixtures.parquet_feed import Feed

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: folders that examples name
FOLDER = re.compile(r'"((?:events|out|chk)(?:/\w+)?)"')
#: what users write or declare: the class has an example, operators call its methods
HOOKS = (
    ice.ListState,
    ice.MapState,
    ice.ObjectState,
    ice.StatefulProcessor,
    ice.TableState,
    ice.UserAggregate,
    ice.ValueState,
    ice.VectorisedProcessor,
    ice.JobWindow,
)


class Counting(ice.StatefulProcessor):
    """A processor, for an example of how one is used."""

    output = "agent string, calls long"

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "calls long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[dict[str, Any]]:  # noqa: N802
        [calls] = self.seen.get() or [0]
        self.seen.update((calls + len(rows),))
        yield {"agent": key[0], "calls": calls + len(rows)}


def public() -> Iterator[tuple[str, str]]:
    """Give the name and the docstring of everything public."""
    named = {name: getattr(ice, name) for name in ice.__all__}
    # errors are caught in one way, which their base class shows
    kinds = IcestreamError.__subclasses__()
    named = {name: each for name, each in named.items() if each not in kinds}
    for name, each in {**named, "LatestBy": LatestBy, "UpdateResult": UpdateResult}.items():
        yield name, inspect.getdoc(each) or ""
        if inspect.isclass(each) and each not in HOOKS:
            for member in dir(each):
                found = inspect.getattr_static(each, member)
                function = found.fget if isinstance(found, property) else found
                if not member.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{member}", inspect.getdoc(found) or ""


def test_everything_public_has_an_example() -> None:
    # what begins the work of a query that was made is called by the writer alone
    missing = [name for name, text in public() if ">>> " not in text and name != "Query.start"]
    assert missing == []


@pytest.fixture
def given(spark: SparkSession, tmp_path: Path) -> Iterator[dict[str, Any]]:
    moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
    event = {
        "timestamp": pa.array([moment], pa.timestamp("us", "UTC")),
        "busyTime": [30],
        "price": [2.5],
        "volume": [100],
        **{name: ["a"] for name in ("serviceId", "symbol", "userId", "agent")},
    }
    df = Feed(spark, str(tmp_path / "given"), pa.table(event)).stream()
    (tmp_path / "events").mkdir()
    calls = ice.stream(df, time="timestamp", slack="5 seconds")
    kpis = calls.window("24 hours", slide="10 seconds").groupBy("serviceId").count()
    writer = kpis.writeStream.format("noop").queryName("kpis").memory("64 MB")
    query = writer.option("checkpointLocation", str(tmp_path / "running")).start()
    query.processAllAvailable()
    yield {
        "ice": ice,
        "spark": spark,
        "sf": sf,
        "df": df,
        "calls": calls,
        "events": calls.events(),
        "hourly": calls.window("1 hour").groupBy("serviceId"),
        "kpis": kpis,
        "query": query,
        "Counting": Counting,
        "busy": calls.events().last("1 hour").groupBy("agent").agg(ice.count().alias("calls")),
        "counted": ice.job(calls).compute(
            lambda state, call: {"n": state["n"] + 1},
            key="agent",
            initial={"n": 0},
            window="1 hour",
        ),
    }
    query.stop()
    spark.sql("DROP TABLE IF EXISTS kpi_rows")


def waiting_updates() -> ice.UpdateQueue:
    keys, rows = np.array([7, 9], np.uint64), pa.record_batch({"price": [21.0, 5.0]})
    updates = ice.UpdateQueue(rows.schema)
    updates.enqueue(keys, keys, np.array([1, 2]), rows)
    return updates


@pytest.mark.spark
def test_the_examples_run_and_print_what_is_shown(given: dict[str, Any], tmp_path: Path) -> None:
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=FLAGS)
    reported = io.StringIO()
    # in the order of names, but state is read from a checkpoint that StreamWriter.start makes
    for name, text in sorted(public(), key=lambda each: (each[0] == "read_state", each[0])):
        code = FOLDER.sub(lambda found: repr(str(tmp_path / found[1])), text)
        example = parser.get_doctest(
            code, {**given, "updates": waiting_updates()}, name, None, None
        )
        runner.run(example, out=reported.write)
    assert not reported.getvalue()
