"""Aggregates over the newest windows of keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError, InputError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.latest.window_aggregate import WindowedUpdates
from icestream.state.queue.windows.spec import UpdateWindows

SCHEMA = pa.schema([("symbol", pa.string()), ("time", pa.int64()), ("price", pa.float64())])
AGGREGATES = (
    Aggregate("count", None, "n"),
    Aggregate("sum", "price", "total"),
    Aggregate("min", "price", "low"),
    Aggregate("max", "price", "high"),
    Aggregate("last", "price", "close"),
)
STEPS = st.lists(
    st.one_of(
        st.integers(0, 12),
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(-1, 4), st.integers(-8, 8)), max_size=12
        ),
    ),
    max_size=15,
)


def operator(windows: UpdateWindows) -> WindowedUpdates:
    return WindowedUpdates(
        SCHEMA, keys=["symbol"], time="time", windows=windows, aggregates=AGGREGATES
    )


@given(
    lengths=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    semantics=st.sampled_from(["lazy", "eager"]),
    steps=STEPS,
)
@settings(max_examples=120)
def test_oracle_answers_are_over_whole_windows(
    lengths: tuple[int, int], semantics: str, steps: list[int | list[tuple[str, int, int]]]
) -> None:
    windows = UpdateWindows(max(lengths), min(lengths), semantics)  # type: ignore[arg-type]
    made = operator(windows)
    known: dict[str, dict[int, float]] = {}
    shown: dict[str, int] = {}
    for step in [*steps, 1000]:
        if isinstance(step, list):
            rows: list[dict[str, Any]] = []
            for symbol, ahead, price in step:
                mine = known.setdefault(symbol, {})
                time = max(1, max(mine, default=0) + ahead)
                # one instant is in one batch here: later ones may come after it was served
                if time == max(mine, default=0) and (symbol, time) not in {
                    (row["symbol"], row["time"]) for row in rows
                }:
                    continue
                if time >= max(mine, default=0):
                    mine[time] = price / 4
                rows.append({"symbol": symbol, "time": time, "price": price / 4})
            batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
            made.enqueue(batch, np.arange(len(rows)))
            continue
        for row in made.serve(step).to_pylist():
            symbol, start, end = row["symbol"], row["window_start"], row["window_end"]
            inside = {t: price for t, price in known[symbol].items() if start <= t <= end}
            assert end - start + 1 == windows.size
            assert start % windows.slide == 0
            assert start > shown.get(symbol, -1)
            shown[symbol] = start
            prices = list(inside.values())
            assert row["n"] == len(prices)
            assert row["total"] == sum(prices)
            assert (row["low"], row["high"]) == (min(prices), max(prices))
            assert row["close"] == inside[max(inside)]


def test_under_overload_only_the_newest_window_is_processed() -> None:
    made = operator(UpdateWindows(3, 1))
    rows = [{"symbol": "a", "time": time, "price": float(time)} for time in range(1, 100)]
    made.enqueue(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), np.arange(99))
    (row,) = made.serve(1000).to_pylist()
    assert (row["window_start"], row["total"]) == (97, 97.0 + 98.0 + 99.0)
    assert made.facts["open"] == 0


def test_a_window_is_not_answered_before_it_is_full() -> None:
    made = operator(UpdateWindows(3, 3, "eager"))

    def put(time: int) -> None:
        row = {"symbol": "a", "time": time, "price": 1.0}
        made.enqueue(pa.RecordBatch.from_pylist([row], schema=SCHEMA), np.array([time]))

    put(3)
    put(4)
    assert made.serve(10).num_rows == 0
    assert made.facts["open"] == 1
    put(7)
    assert made.serve(10).select(["window_start", "n"]).to_pylist() == [{"window_start": 3, "n": 2}]


def test_times_may_be_timestamps() -> None:
    schema = pa.schema([("k", pa.int32()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])
    made = WindowedUpdates(
        schema,
        keys=["k"],
        time="ts",
        windows=UpdateWindows(2_000_000, 1_000_000),
        aggregates=[Aggregate("sum", "v", "total")],
    )
    times = pa.array([1_000_000, 2_000_000, 3_000_000]).cast(pa.timestamp("us", "UTC"))
    batch = pa.record_batch([pa.array([1, 1, 1], pa.int32()), times, pa.array([1, 2, 4])], schema)
    made.enqueue(batch, np.array([1, 2, 3]))
    assert made.result.schema.field("window_end").type == pa.timestamp("us", "UTC")
    assert made.serve(9)["total"].to_pylist() == [3]


def test_unfit_definitions_and_rows_are_refused() -> None:
    with pytest.raises(DefinitionError, match="one function"):
        WindowedUpdates(
            SCHEMA, keys=["symbol"], time="time", windows=UpdateWindows(1, 1), aggregates=[]
        )
    with pytest.raises(DefinitionError, match="distinct names"):
        WindowedUpdates(
            SCHEMA,
            keys=["symbol"],
            time="time",
            windows=UpdateWindows(1, 1),
            aggregates=[Aggregate("sum", "price", "symbol")],
        )
    row = {"symbol": "a", "time": None, "price": 1.0}
    with pytest.raises(InputError, match="'time' has no value"):
        operator(UpdateWindows(1, 1)).enqueue(
            pa.RecordBatch.from_pylist([row], schema=SCHEMA), np.array([1])
        )
