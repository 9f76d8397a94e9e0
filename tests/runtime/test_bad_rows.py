"""Rows that steps and user code refuse: they end the query, or are stored and leave no trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import icestream as ice
from icestream.api.events import Events
from icestream.core.errors import IcestreamError
from icestream.core.times import FURTHEST
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.computation import Computation
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import Source
from icestream.runtime.exchange.refused_rows import REASON, ROW, SOURCE_NAME, refused_columns
from icestream.runtime.local import LocalQuery, read_rows
from icestream.runtime.version.settings import Settings
from tests.fixtures.job_plans import job_dataflow, tuples_of
from tests.fixtures.plans import INSTANT, QuickFiles, window_plan
from tests.fixtures.update_streams import (
    Costly,
    ManualClock,
    Quote,
    open_updates,
    quotes_plan,
    splits_of,
)

COLUMNS = pa.schema([("key", pa.int64()), ("value", pa.int64())])
#: values on which all code below fails
BAD = 7
SECOND = 1_000_000


class PerGroup(ice.StatefulProcessor):
    """Adds up values; fails after it wrote its state."""

    output = "key long, total long"

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[dict[str, Any]]:  # noqa: N802 - PySpark's name
        total = (self.total.get() or (0,))[0] + sum(rows["value"])
        self.total.update((total,))
        if any(value % 10 == BAD for value in rows["value"]):
            msg = "seven"
            raise ArithmeticError(msg)
        yield {"key": key[0], "total": total}


class Vectorised(ice.VectorisedProcessor):
    """The same for many groups."""

    state = {"totals": ice.ValueState("total long")}  # noqa: RUF012 - declared by users so
    output = "key long, total long"

    def process(self, batch: Any, state: Any) -> list[Any]:
        total = state.totals.numpy()["total"] + batch.reduce(np.add, "value")
        state.totals.set([total])
        if (batch.column("value") % 10 == BAD).any():
            msg = "seven"
            raise ArithmeticError(msg)
        return [batch.keys["key"], total]


def _flow(made: Events) -> Computation:
    outputs = ((made._node, "append"),)
    return compiled(outputs, {0: 0}, (Source("source", 0),), (COLUMNS,), INSTANT)


def _events() -> Events:
    return Events(FromSource(COLUMNS, source=0), {})


def _processed(processor: Any) -> Computation:
    return _flow(_events().groupApply("key", lambda group: group.process(processor)))


def _projected() -> Computation:
    """Fail in an expression, before the exchange and behind it."""
    checked = "key", "value", f"1 / (value % 10 - {BAD}) AS part"
    totals = _events().groupApply("key", lambda group: group.top(1, by="value"))
    return _flow(totals.select(*checked))


def _sent_on_several_edges() -> Computation:
    """Fail in an expression before events are sent to frames of two keys."""
    made = _events().select("key", "value", f"1 / (value % 10 - {BAD}) AS part")
    for key in ("key", "value"):
        made = made.over(ice.count().alias(f"of_{key}"), partitionBy=key, range="1 second")
    return _flow(made)


def _lift(value: int) -> int:
    if value % 10 == BAD:
        msg = "seven"
        raise ArithmeticError(msg)
    return value


USER = ice.UserAggregate(_lift, lambda a, b: a + b, lambda state: state, pa.int64(), title="total")


def _windows() -> Computation:
    inputs = pa.schema([("value", pa.int64())])
    aggregates = (Aggregate("user", "value", "total", (), (USER,)),)
    return window_plan("2 seconds", slack=0, inputs=inputs, aggregates=aggregates)


def _fold(state: dict[str, int], row: dict[str, int]) -> dict[str, int]:
    return {"total": state["total"] + _lift(row["value"])}


def _job() -> Computation:
    made = tuples_of(COLUMNS).compute(_fold, key="key", initial={"total": 0}, window="2 seconds")
    return job_dataflow(made, columns=[COLUMNS])


KINDS: dict[str, Callable[[], Computation]] = {
    "per group": lambda: _processed(PerGroup()),
    "vectorised": lambda: _processed(Vectorised()),
    "expression": _projected,
    "several edges": _sent_on_several_edges,
    "user aggregate": _windows,
    "job": _job,
}


@dataclass
class Run:
    """A local query, fed batch by batch."""

    plan: Computation
    folder: Path
    quarantine: bool = True

    def __post_init__(self) -> None:
        self.query = self.opened()
        self.rows: list[dict[str, Any]] = []
        self.bad: list[dict[str, Any]] = []
        self.count = 0

    def opened(self) -> LocalQuery:
        settings = Settings(
            root=str(self.folder / "checkpoint"),
            local=str(self.folder / "local"),
            budget=16 << 20,
            shards=2,
            refused=refused_columns() if self.quarantine else None,
        )
        return LocalQuery(self.plan, settings, QuickFiles())

    def feed(self, number: int, times: Any, keys: Any, values: Any) -> None:
        schema = self.plan.batch_schema
        columns = [pa.array(times).cast(INSTANT), pa.array(np.zeros(len(times), dtype=np.int32))]
        for field, column in zip(list(schema)[2:], (keys, values), strict=True):
            columns.append(pa.array(column).cast(field.type))
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        self.take(self.query.driver.batch(number, [[batch]]))

    def answers(self, kind: str) -> Any:
        """Return what does not depend on how often user code was called."""
        if kind in ("per group", "vectorised"):
            totals: dict[int, int] = {}
            for row in self.rows:
                totals[row["key"]] = max(totals.get(row["key"], 0), row["total"])
            return totals
        good = [row for row in self.rows if kind != "expression" or row["value"] % 10 != BAD]
        return sorted(map(repr, good))

    def take(self, deliveries: Any) -> None:
        self.rows += self.query.rows(deliveries).to_pylist()
        for delivery in deliveries:
            self.count = delivery.progress["icestream"]["badRows"]
            for path in delivery.late:
                for table in read_rows(self.query.files, path):
                    self.bad += table.to_pylist()


def batches(seed: int) -> Iterator[tuple[Any, Any, Any]]:
    dice = np.random.default_rng(seed)
    for number in range(6):
        count = int(dice.choice([0, 1, 60]))
        times = number * SECOND + np.sort(dice.integers(0, SECOND, count))
        yield times, dice.integers(0, 8, count), dice.integers(0, 50, count)


@pytest.mark.sample(6)
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_oracle_bad_rows_leave_no_trace(kind: str, restart: bool, tmp_path: Path) -> None:
    given, clean = (Run(KINDS[kind](), tmp_path / name) for name in ("given", "clean"))
    bad = 0
    for number, (times, keys, values) in enumerate(batches(3)):
        good = values % 10 != BAD
        bad += int((~good).sum())
        if restart:
            given.query = given.opened()
        given.feed(number, times, keys, values)
        clean.feed(number, times[good], keys[good], values[good])
    for run in (given, clean):
        run.take(run.query.driver.flush())
    assert bad > 5
    assert not clean.bad
    # only the greatest value of a group reaches the expression
    assert given.count == len(given.bad) == (bad if kind != "expression" else given.count) > 0
    assert given.answers(kind) == clean.answers(kind)
    for row in given.bad:
        assert row[SOURCE_NAME]
        assert row[REASON]
        seen = json.loads(row[ROW])
        assert seen.get("value", seen.get("x0")) % 10 == BAD


@pytest.mark.parametrize("kind", ["per group", "user aggregate", "expression"])
def test_a_query_goes_on_after_bad_rows_are_quarantined(kind: str, tmp_path: Path) -> None:
    run = Run(KINDS[kind](), tmp_path, quarantine=False)
    run.feed(0, [1], [1], [1])
    for _ in range(2):  # also when it is started again
        with pytest.raises(IcestreamError, match=r"onBadRow', 'quarantine'"):
            run.feed(1, [2, SECOND], [1, 1], [BAD, 2])
        run.query = run.opened()
    run.quarantine = True
    run.query = run.opened()
    run.feed(1, [2, SECOND], [1, 1], [BAD, 2])
    assert run.count == 1
    assert len(run.bad) == 1
    run.quarantine = False
    run.query = run.opened()
    run.feed(2, [2 * SECOND], [1], [3])
    assert run.count == 1


class FailingTimers(PerGroup):
    """Sets a timer for each row; those of one key fail."""

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Iterator[dict[str, Any]]:  # noqa: N802 - PySpark's name
        for time in rows.times:
            timers.set(int(time) + SECOND)
        return iter(())

    def handleExpiredTimer(self, key: Any, timers: Any, expired: Any) -> Iterator[dict[str, Any]]:  # noqa: N802 - PySpark's name
        if key[0] == BAD:
            msg = "seven"
            raise ArithmeticError(msg)
        yield {"key": key[0], "total": expired.instant}


def test_timers_on_which_user_code_fails_are_deleted(tmp_path: Path) -> None:
    run = Run(_processed(FailingTimers()), tmp_path)
    run.feed(0, [1, 2, 3], [BAD, 1, 2], [0, 0, 0])
    run.feed(1, [3 * SECOND], [3], [0])
    run.feed(2, [9 * SECOND], [4], [0])
    assert [json.loads(row[ROW])["key"] for row in run.bad] == [BAD]
    assert sorted(row["key"] for row in run.rows) == [1, 2, 3]


def test_events_with_times_that_no_window_can_have_are_quarantined(tmp_path: Path) -> None:
    run = Run(_windows(), tmp_path)
    run.feed(0, [1, FURTHEST + 1, None, SECOND], [1, 2, 3, 1], [1, 1, 1, 1])
    run.feed(1, [9 * SECOND], [1], [1])
    reasons = {json.loads(row[ROW])["k0"]: row[REASON] for row in run.bad}
    assert reasons == {2: "time out of range", 3: "without time"}
    assert run.count == 1
    assert [row["total"] for row in run.rows] == [2]


@dataclass
class Flaky(Costly):
    """Fails in two of three calls."""

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        made = super().__call__(rows)
        if len(self.calls) % 3:
            raise TimeoutError
        return made


@pytest.mark.parametrize("retries", [0, 2])
def test_a_step_is_called_again_before_its_rows_are_refused(retries: int, tmp_path: Path) -> None:
    plan = quotes_plan(Flaky(ManualClock()))
    plan = replace(plan, steps=(replace(plan.steps[0], retries=retries),))
    query = open_updates(plan, tmp_path, shards=1)
    quotes: list[Quote] = [(f"s{number}", number, number) for number in range(8)]
    if retries:
        found = query.rows(query.driver.batch(0, splits_of(quotes)))
        assert sorted(found.column("price").to_pylist()) == list(range(8))
    else:
        with pytest.raises(IcestreamError, match="onBadRow"):
            query.driver.batch(0, splits_of(quotes))
