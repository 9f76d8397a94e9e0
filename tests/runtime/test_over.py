"""Columns over frames as whole queries, beside the obvious computation and beside SQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.dataflow import gather
from icestream.operators.frames import event_frames, operator, tuples
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.features import UP_TO_TIME, FeatureCall, with_features
from icestream.plan.nodes.events import FromSource
from icestream.plan.windows.frame import Frame
from icestream.runtime.local import LocalQuery
from icestream.testing.sources import SECOND, batches_of
from tests.fixtures import dataflow_plans as plans
from tests.suites.crash_runs import CrashRuns
from tests.suites.dataflow_conformance import (
    DataflowConformance,
    open_dataflow,
    small_sizes,
)
from tests.suites.dataflow_crash_runs import DataflowScript


@contextmanager
def small_blocks(size: int = 512) -> Iterator[None]:
    """Let little data fill several blocks and chunks."""
    with ExitStack() as stack:
        for module in (operator, tuples, event_frames, gather):
            stack.enter_context(mock.patch.object(module, "BLOCK_BYTES", size))
        yield


class _OverConformance(DataflowConformance):
    exact = True

    def open(self, folder: Path, *, shards: int = 2) -> LocalQuery:
        return open_dataflow(self.flow, folder, shards=shards, budget=256 << 20)

    def check_cold(self, folder: Path, flow: Dataflow, *, reopen: bool = False) -> None:
        """Run with memory for a part of the groups, in partitions of them."""
        items, expected = self.many()
        budget, partitions, tables = 48 * 1024 * len(flow.components), 0, []
        with small_sizes(quota=1024, chunk=256), small_blocks():
            for number, batch in enumerate(batches_of(items)):
                if number == 0 or (reopen and number == 4):
                    query = open_dataflow(flow, folder, budget=budget, shards=1)
                (delivery,) = query.driver.batch(query.next_batch, batch)
                facts = delivery.progress["icestream"]
                assert facts["peakMemoryBytes"] <= budget
                partitions = max(partitions, facts["partitions"])
                tables.append(query.rows([delivery]))
            tables.append(query.flush())
        assert partitions > len(flow.components), "no partition was evicted: nothing was tested"
        self.compare(tables, expected)


class TestOver(_OverConformance):
    flow = plans.over()


class TestOverResults(_OverConformance):
    flow = plans.over_results()

    def check_cold(self, folder: Path, flow: Dataflow, *, reopen: bool = False) -> None:
        with small_blocks():
            DataflowConformance.check_cold(self, folder, flow, reopen=reopen)


#: columns of DuckDB beside the features of `calls_of`
SQL = {
    "n_{key}": "count(*) OVER (PARTITION BY {key} ORDER BY t RANGE 5000000 PRECEDING)",
    "most_{key}": "max(amount) OVER (PARTITION BY {key} ORDER BY t RANGE 5000000 PRECEDING)",
    "sum_{key}": "sum(units) OVER (PARTITION BY {key} ORDER BY t RANGE 60000000 PRECEDING)",
    "least_{key}": "min(units) OVER (PARTITION BY {key} ORDER BY t RANGE 60000000 PRECEDING)",
    "three_{key}": "sum(units) OVER (PARTITION BY {key} ORDER BY t, no ROWS 2 PRECEDING)",
    "before_{key}": "lag(units, 2) OVER (PARTITION BY {key} ORDER BY t, no)",
    "place_{key}": "rank() OVER (PARTITION BY {key} ORDER BY t)",
    "number_{key}": "row_number() OVER (PARTITION BY {key} ORDER BY t, no)",
    "all_{key}": "sum(units) OVER (PARTITION BY {key} ORDER BY t)",
}
PAYMENTS = pa.schema(
    [
        ("no", pa.int64()),
        ("card", pa.int64()),
        ("shop", pa.string()),
        ("amount", pa.float64()),
        ("units", pa.int64()),
    ]
)


def calls_of(key: str) -> list[FeatureCall]:
    short, long = (Frame(range=each * SECOND, peers=True) for each in (5, 60))
    calls = [
        ("count", (), "n", short, ()),
        ("max", ("amount",), "most", short, ()),
        ("sum", ("units",), "sum", long, ()),
        ("min", ("units",), "least", long, ()),
        ("sum", ("units",), "three", Frame(rows=3), ()),
        ("lag", ("units",), "before", UP_TO_TIME, (2, None)),
        ("rank", (), "place", UP_TO_TIME, ()),
        ("row_number", (), "number", UP_TO_TIME, ()),
        ("sum", ("units",), "all", UP_TO_TIME, ()),
    ]
    return [
        FeatureCall(function, texts, f"{name}_{key}", (key,), frame, parameters)
        for function, texts, name, frame, parameters in calls
    ]


def payments(seed: int, count: int) -> pa.Table:
    """Return events by arrival: many of equal time, disorder inside of three seconds, nulls."""
    dice = np.random.default_rng(seed)
    times = np.sort(dice.integers(-150, 150, count)) * SECOND
    times = times[np.argsort(times + dice.integers(0, 3 * SECOND, count), kind="stable")]
    return pa.table(
        {
            "t": times,
            "no": np.arange(count),
            "card": pa.array(dice.integers(0, 40, count), mask=dice.random(count) < 0.05),
            "shop": pa.array(dice.choice(np.array(["a", "b", "c", None]), count).tolist()),
            "amount": dice.random(count).round(2),
            "units": pa.array(dice.integers(-5, 50, count), mask=dice.random(count) < 0.1),
        }
    )


def batches(flow: Dataflow, table: pa.Table, step: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(table), step):
        part = table.slice(first, step).combine_chunks()
        source = pa.array(np.zeros(len(part)), pa.int32())
        columns = [part.column("t").cast(flow.time), source]
        columns += [part.column(each.name).cast(each.type) for each in PAYMENTS]
        made = pa.Table.from_arrays(columns, schema=flow.batch_schema).combine_chunks()
        yield from made.to_batches()


def answered_by_duckdb(table: pa.Table) -> list[dict[str, object]]:
    columns = [
        f"CAST({text.format(key=key)} AS DOUBLE) AS {name.format(key=key)}"
        for key in ("card", "shop")
        for name, text in SQL.items()
    ]
    with duckdb.connect() as database:
        database.register("payments", table)
        rows = database.execute(f"SELECT no, {', '.join(columns)} FROM payments ORDER BY no")
        names = [each[0] for each in rows.description or ()]
        return [dict(zip(names, row, strict=True)) for row in rows.fetchall()]


def plain(value: object) -> object:
    return float(value) if isinstance(value, int | float) else value


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_oracle_features_are_those_of_sql(seed: int, tmp_path: Path) -> None:
    calls = [each for key in ("card", "shop") for each in calls_of(key)]
    node = with_features(FromSource(PAYMENTS), calls)
    flow = plans.dataflow(plans.PlanStream(node), "append", (PAYMENTS,), slack=3 * SECOND)
    table = payments(seed, 1500)
    query = open_dataflow(flow, tmp_path, budget=64 << 20)
    made = [query.feed([[batch]]) for batch in batches(flow, table, 400)]
    rows = pa.concat_tables([*made, query.flush()]).sort_by("no").to_pylist()
    expected = answered_by_duckdb(table)
    found = [{name: plain(row[name]) for name in expected[0]} for row in rows]
    assert found == [{name: plain(value) for name, value in row.items()} for row in expected]


class _OverScript(DataflowScript):
    """Features of the events of the crash runs, over two keys."""

    @cached_property
    def plan(self) -> Dataflow:
        ratings = plans.PlanStream.of(plans.RATINGS)
        return plans.dataflow(
            plans.PlanStream(with_features(ratings.node, plans.FEATURES)), "append", slack=SECOND
        )


@pytest.mark.slow
def test_crash_at_a_sample_of_steps(tmp_path: Path) -> None:
    with small_sizes(quota=1024), small_blocks():
        runs = CrashRuns(_OverScript(batches=4, budget=8 << 20), str(tmp_path))
        disk = runs.undisturbed()
        assert any(rows for rows, _ in runs.expected)
        every = disk.steps // 12
        runs.crash_everywhere(lambda step: step % every == 0)
    assert runs.points >= 12
    assert runs.differences == []


def test_bounded_an_instant_of_more_events_than_a_chunk(tmp_path: Path) -> None:
    """Events of whole minutes: an instant has more events than memory holds at once."""
    node = with_features(FromSource(PAYMENTS), calls_of("card"))
    flow = plans.dataflow(plans.PlanStream(node), "append", (PAYMENTS,), slack=60 * SECOND)
    table = payments(5, 800)
    minutes = np.asarray(table["t"]) // (60 * SECOND) * (60 * SECOND)
    table = table.set_column(0, "t", pa.array(minutes))
    with small_sizes(quota=1024), small_blocks():
        query = open_dataflow(flow, tmp_path, budget=512 << 10, shards=1)
        made = [query.feed([[batch]]) for batch in batches(flow, table, 150)]
        rows = pa.concat_tables([*made, query.flush()]).sort_by("no").to_pylist()
    expected = answered_by_duckdb(table)
    names = [name for name in expected[0] if not name.endswith("shop")]
    assert [{name: plain(row[name]) for name in names} for row in rows] == [
        {name: plain(row[name]) for name in names} for row in expected
    ]


def test_features_of_several_calls_are_computed_together() -> None:
    first = with_features(FromSource(PAYMENTS), calls_of("card"))
    again = [replace(each, name=f"{each.name}_again") for each in calls_of("card")]
    both = with_features(first, [*calls_of("shop"), *again])
    assert both.before is first.before
    assert len(both.features) == 2 * len(first.features)
    later = FeatureCall("max", ("n_card",), "peak", ("card",), UP_TO_TIME)
    assert with_features(both, [later]).before is both
