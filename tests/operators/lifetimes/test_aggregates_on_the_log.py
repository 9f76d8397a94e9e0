"""Aggregates, top-k and settling over groups that leave memory after every chunk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from icestream.core.times import Micros
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.lifetimes.aggregate import lifetime_aggregate
from icestream.operators.lifetimes.changes import LifetimeOperator
from icestream.operators.lifetimes.ordering import Order
from icestream.operators.lifetimes.output_modes import AppendOutput
from icestream.operators.lifetimes.top import TopK
from icestream.state.groups.options import StoreOptions
from icestream.state.groups.store import GroupStore
from icestream.state.groups.view import GroupView
from tests.fixtures import lifetime_events as scenarios
from tests.fixtures.group_space import GroupSpace

PORT = scenarios.port()
OPERATORS: dict[str, Callable[[], LifetimeOperator]] = {
    "edges": lambda: lifetime_aggregate(
        PORT.schema, [Aggregate("avg", "score", "mean"), Aggregate("sum", "size", "total")]
    ),
    "final": lambda: lifetime_aggregate(
        PORT.schema, [Aggregate("count", "name", "names")], ["size"], mode="final"
    ),
    "alive": lambda: lifetime_aggregate(
        PORT.schema, [Aggregate("max", "score", "most"), Aggregate("first", "size", "first")]
    ),
    "settled": lambda: lifetime_aggregate(
        PORT.schema, [Aggregate("min", "size", "least")], mode="final"
    ),
    "top": lambda: TopK(PORT.schema, 2, [Order("size"), Order("name", descending=False)]),
    "settle": lambda: AppendOutput(PORT.schema),
}


class Chilly(GroupView):
    """Lets all groups leave memory whenever work begins."""

    def __init__(self, store: GroupStore) -> None:
        super().__init__(store, 0, store.directory.synopses)
        self._whole = store

    def begin(self, watermark: Micros) -> None:
        self._whole.eviction.evict(self._whole.eviction.candidates())
        super().begin(watermark)


@pytest.mark.sample(4)
@pytest.mark.parametrize("durability", ["log", "evict"])
@pytest.mark.parametrize("name", OPERATORS)
def test_parity_cold_groups_give_the_answers_of_plain_ones(
    tmp_path: Path, name: str, durability: Literal["log", "evict"]
) -> None:
    for seed in range(4):
        operator = OPERATORS[name]()
        batches = scenarios.scenario(
            Random(seed), [PORT], scenarios.ScenarioKind(revisions=15, batches=5)
        )
        plain = [step.output.copy() for step in scenarios.play(operator, batches)]
        folder = tmp_path / str(seed)
        folder.mkdir()
        space = GroupSpace(str(folder), operator.synopses, StoreOptions(durability))
        with space.version() as store:
            steps = scenarios.play(operator, batches, Chilly(store))
            assert [step.output.copy() for step in steps] == plain
