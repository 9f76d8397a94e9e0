from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.grid.lower import liftable
from icestream.plan.nodes.queries import Plan
from icestream.runtime.work.windows import folding
from icestream.runtime.work.windows.folding import HOT_ROWS, SAMPLED, hot_groups
from icestream.testing.sources import StreamShape, batches_of, generate
from tests.fixtures.plans import open_query, window_plan

TWO = pa.schema([("value", pa.float64()), ("whole", pa.int64())])
FREE = (
    Aggregate("median", "whole", "median"),
    Aggregate("percentile", "value", "quartiles", (), ((0.25, 0.75),)),
    Aggregate("count_distinct", "whole", "distinct"),
    Aggregate("collect_set", "whole", "set"),
    Aggregate("mode", "whole", "mode"),
    Aggregate("sum", "value", "sum"),
    Aggregate("max", "value", "max"),
)


def plan_of(aggregates: Sequence[Aggregate] = FREE, **given: Any) -> Plan:
    return window_plan(
        "8 seconds", "2 seconds", slack="1 second", inputs=TWO, aggregates=aggregates, **given
    )


@pytest.mark.parametrize(
    "keys", [pa.schema([("key", pa.int64())]), pa.schema([])], ids=["keys", "no keys"]
)
def test_oracle_hot_groups_are_split_and_consolidated(
    keys: pa.Schema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(keys=keys)
    shape = StreamShape(events=1500, batches=8, groups=6, skew=1.5, span=60_000_000)
    batches = batches_of(generate(plan, shape, 5))
    monkeypatch.setattr(folding, "SAMPLED", 1)
    monkeypatch.setattr(folding, "TUPLE_ROWS", 50)
    found: dict[str, list[pa.Table]] = {}
    split: dict[str, list[int]] = {}
    for when in ("never", "always", "every other batch"):
        query = open_query(plan, f"{tmp_path}/{when}", shards=4)
        found[when], split[when] = [], []
        for number, batch in enumerate(batches):
            hot = when == "always" or (when == "every other batch" and number % 2)
            monkeypatch.setattr(folding, "HOT_ROWS", 2 if hot else 1 << 60)
            [delivery] = query.driver.batch(number, batch)
            found[when].append(query.rows([delivery]))
            split[when].append(delivery.progress["icestream"]["hotEvents"])
        found[when].append(query.flush())
    assert not any(split["never"])
    assert all(split["always"])
    assert [bool(count) for count in split["every other batch"]] == [False, True] * 4
    assert sum(table.num_rows for table in found["never"]) > 20
    assert found["always"] == found["never"]
    assert found["every other batch"] == found["never"]


def test_groups_with_a_good_part_of_a_batch_are_hot() -> None:
    dice = np.random.default_rng(2)
    cold = dice.integers(0, 1 << 63, 40 * HOT_ROWS).astype(np.uint64)
    assert len(hot_groups(cold)) == 0
    mixed = np.where(dice.random(len(cold)) < 0.2, np.uint64(77), cold)
    assert hot_groups(mixed).tolist() == [77]
    few = np.full(HOT_ROWS - SAMPLED, 77, dtype=np.uint64)
    assert len(hot_groups(few)) == 0, "few events are not worth it"


@pytest.mark.parametrize("function", ["collect_list", "first", "last"])
def test_aggregates_that_go_by_order_are_not_split(function: str) -> None:
    assert liftable(plan_of()) is not None
    assert liftable(plan_of((*FREE, Aggregate(function, "whole", "ordered")))) is None
