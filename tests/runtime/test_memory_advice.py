"""An error about memory says what is enough: follow it once, and the query goes through.

Idea: each shape of data has rows that must be in memory together and do not fit. A query over it
fails, gets the memory and the shards that the error asks for, and begins anew with the same events.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import BudgetError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.process.declarations import MapState
from icestream.operators.process.operator import UserDefined
from icestream.operators.process.vectorised import VectorisedProcessor
from icestream.plan.computation import Computation
from icestream.plan.events.features import FeatureCall, with_features
from icestream.plan.windows.frame import Frame
from tests.fixtures.dataflow_plans import RATINGS, SECOND, PlanStream, dataflow
from tests.fixtures.plans import open_query, window_plan
from tests.suites.dataflow_conformance import small_sizes

VALUES = pa.schema([("value", pa.int64()), ("text", pa.string())])
LIST = Aggregate("collect_list", "text", "list")
DISTINCT = Aggregate("count_distinct", "value", "distinct")
MIDDLE = Aggregate("percentile", "value", "middle", (), (0.5,))
SKETCH = Aggregate("approx_top_k", "value", "top", (), (3,))
MEDIAN = Aggregate("percentile", "rating", "middle", (), (0.5,))
ITEMS = Aggregate("count_distinct", "item", "items")
TOTAL = Aggregate("sum", "rating", "total")


class Codes(VectorisedProcessor):
    """Looks up the items of a user in a map."""

    state: ClassVar[dict[str, Any]] = {"codes": MapState("code long", "times long")}
    output = "user long, n long"

    def process(self, batch: Any, state: Any) -> Any:
        """Count the items that were there before."""
        found, _ = state.codes.get(batch.group, [batch.column("item")])
        state.codes.put(batch.group, [batch.column("item")], [batch.column("item")])
        return [batch.keys["user"], np.bincount(batch.group, found, len(batch)).astype(np.int64)]


def windows(*aggregates: Aggregate, slide: str | None = None) -> Computation:
    return window_plan("10 seconds", slide, slack="0 seconds", inputs=VALUES, aggregates=aggregates)


def alive(*aggregates: Aggregate, mode: str, life: int = SECOND) -> Computation:
    rows = PlanStream.of(RATINGS).window(life)
    return dataflow(rows.apply(["user"], lambda group: group.agg(*aggregates)), mode, slack=0)


def over() -> Computation:
    frame = Frame(range=SECOND // 20, peers=True)
    call = FeatureCall("count_distinct", ("CAST(item % 9 AS STRING)",), "n", ("user",), frame)
    rows = PlanStream(with_features(PlanStream.of(RATINGS).node, (call,)))
    return dataflow(rows, "append", slack=0)


def user_map() -> Computation:
    operator = UserDefined(Codes(), pa.schema([RATINGS.field("user")]), RATINGS)
    mapped = PlanStream.of(RATINGS).apply(
        ["user"], lambda g: g.through(operator, "map", grows=True)
    )
    return dataflow(mapped, "append", slack=0)


def of_totals() -> Computation:
    totals = PlanStream.of(RATINGS).window(SECOND // 20)
    totals = totals.apply(["user", "item"], lambda item: item.agg(TOTAL))
    most = Aggregate("mode", "total", "most")
    return dataflow(totals.apply(["user"], lambda user: user.agg(most)), "changes", slack=0)


#: a query, events of a batch, its groups
SHAPES: dict[str, tuple[Callable[[], Computation], int, int]] = {
    "a list of one group": (lambda: windows(LIST), 12_000, 1),
    "lists of a few groups": (lambda: windows(LIST), 24_000, 6),
    "a percentile of sliding windows": (lambda: windows(MIDDLE, slide="1 second"), 12_000, 2),
    "several objects of a group": (lambda: windows(LIST, DISTINCT, SKETCH, MIDDLE), 12_000, 2),
    "a sketch of sliding windows": (lambda: windows(SKETCH, DISTINCT, slide="1 second"), 12_000, 1),
    "final objects of lifetimes": (
        lambda: alive(ITEMS, MEDIAN, mode="append", life=SECOND // 500),
        12_000,
        2,
    ),
    "objects of lifetimes": (lambda: alive(MEDIAN, mode="changes", life=SECOND // 4), 4_000, 2),
    "objects of more events than a chunk": (
        lambda: alive(MEDIAN, mode="changes", life=SECOND // 4),
        4_000,
        1,
    ),
    "objects of answers that change": (of_totals, 3_000, 1),
    "rows of a key now": (lambda: alive(TOTAL, mode="now"), 12_000, 1),
    "rows of a few keys now": (lambda: alive(TOTAL, mode="now"), 12_000, 3),
    "objects over frames": (over, 30_000, 2),
    "a map of user code": (user_map, 12_000, 1),
    "maps of user code": (user_map, 24_000, 5),
}
#: rows of a chunk
CHUNK = 700


def events(plan: Computation, count: int, groups: int) -> list[pa.RecordBatch]:
    """Return the events of two windows, and one that closes them."""
    schema, made = plan.batch_schema, []
    of_windows = pa.types.is_string(schema.types[4])
    length = 10 * SECOND if of_windows else SECOND
    for number, size in enumerate((count, count, 1)):
        dice = np.random.default_rng(number)
        values = dice.integers(0, 40_000, size)
        columns = [
            pa.array(np.sort(dice.integers(0, length, size)) + number * length),
            np.zeros(size, dtype=np.int32),
            dice.integers(0, groups, size),
            values,
            [f"text {value}" for value in values] if of_windows else values / 8.0,
        ]
        columns[0] = columns[0].cast(schema.types[0])
        made.append(pa.record_batch(columns, schema=schema))
    return made


@pytest.mark.sample(14)
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_memory_that_an_error_asks_for_is_enough(tmp_path: Path, shape: str, shards: int) -> None:
    make, count, groups = SHAPES[shape]

    def run(memory: str) -> None:
        query = open_query(make(), str(tmp_path / memory), budget=memory, shards=shards)
        try:
            # all events in one batch: an error can only speak of what was seen
            query.feed([events(query.plan, count, groups)])
            query.flush()
        finally:
            query.close()

    with small_sizes(quota=64 << 10, chunk=CHUNK):
        with pytest.raises(BudgetError) as raised:
            run(f"{(2048 if make is over else 256) * shards} KB")
        advice = rf'Give the query at least \.memory\("(\d+ [KM]B)"\)\.shards\({shards}\)'
        found = re.match(advice, str(raised.value))
        assert found is not None, str(raised.value)
        run(found[1])
