"""Update streams with more keys than memory, beside the same streams with memory enough."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icestream.operators.latest.pacing import Pace
from icestream.plan.nodes.updates import Latest
from icestream.testing.moving_shards import rescale, separate_disks
from tests.fixtures.update_streams import (
    SECOND,
    Costly,
    ManualClock,
    PlainUpdates,
    Quote,
    QuotesScript,
    open_updates,
    quotes_plan,
    splits_of,
)
from tests.suites.crash_runs import CrashRuns, staged

PLENTY = 64 << 20
#: about 270 keys fit
LITTLE = 530 << 10
#: keys that are served in a batch
SERVED = 150


def scenario(batches: int, symbols: int, each: int) -> list[list[list[Quote]]]:
    """Quotes of uneven rates in two splits, some out of order, some twice."""
    dice = random.Random(4)
    reported = []
    for batch in range(batches):
        splits: list[list[Quote]] = [[], []]
        for price in range(each):
            symbol = f"symbol {int(symbols * dice.random() ** 1.5)}"
            at = batch * SECOND + dice.randrange(-SECOND // 4, SECOND)
            splits[dice.randrange(2)].append((symbol, batch * each + price, at))
        reported.append(splits)
    return reported


def served(
    folder: Path, budget: int, schedule: str, restart: str, forget: int | None = None
) -> list[tuple[Any, dict[str, Any]]]:
    """Return what each batch delivers, in order, and what it tells."""
    clock = ManualClock()
    plan = quotes_plan(Costly(clock, each=100), schedule=schedule, budget=SECOND)
    plan = replace(plan, latest=Latest(("symbol",), schedule, forget=forget))
    found = []
    with staged(tight=True):
        query = open_updates(plan, folder, shards=1, budget=budget)
        for number, splits in enumerate(scenario(14, 9000, 400)):
            clock.at = (number + 1) * SECOND
            if restart == "sometimes" and number % 3 == 2:
                query = open_updates(plan, folder, shards=1, budget=budget)
            if restart == "sometimes" and number % 5 == 4:
                shutil.rmtree(folder / "local")
            (delivery,) = query.driver.batch(number, splits_of(*splits))
            reported = delivery.progress["icestream"]["updates"]
            found.append((query.rows([delivery]).to_pylist(), reported))
    return found


@pytest.fixture
def _as_many_in_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve the same number of keys whatever was learnt of costs, which a restart forgets."""
    monkeypatch.setattr(Pace, "slice", lambda _, __, first: SERVED if first else 0)


@pytest.mark.usefixtures("_as_many_in_every_batch")
@pytest.mark.parametrize("schedule", ["fifo", "inplace", "linecutting"])
def test_oracle_a_small_budget_serves_the_same(schedule: str, tmp_path: Path) -> None:
    """The same keys, values and times in the same order, and exactly the same staleness."""
    plenty, little = (
        served(tmp_path / str(budget), budget, schedule, "never") for budget in (PLENTY, LITTLE)
    )
    assert little == plenty
    assert plenty[-1][1]["waiting"] > 2000
    assert plenty[-1][1]["keys"] > 3000


@pytest.mark.usefixtures("_as_many_in_every_batch")
@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param("fifo", marks=pytest.mark.slow),
        "inplace",
        pytest.param("linecutting", marks=pytest.mark.slow),
    ],
)
def test_oracle_a_small_budget_serves_the_same_after_restarts(
    schedule: str, tmp_path: Path
) -> None:
    """Now and then the local disk is lost and everything comes back from the log."""
    plenty, little = (
        served(tmp_path / str(budget), budget, schedule, "sometimes") for budget in (PLENTY, LITTLE)
    )
    assert little == plenty


@pytest.mark.usefixtures("_as_many_in_every_batch")
def test_oracle_forgotten_keys_are_the_same_with_a_small_budget(tmp_path: Path) -> None:
    plenty, little = (
        served(tmp_path / str(budget), budget, "inplace", "sometimes", forget=3 * SECOND)
        for budget in (PLENTY, LITTLE)
    )
    assert little == plenty
    assert 500 < plenty[-1][1]["keys"] < 3000


def waits_of_rare_keys(folder: Path, budget: int, schedule: str) -> list[int]:
    """Return how many batches each key that is updated once waits among overloaded ones."""
    dice, clock, waits = random.Random(5), ManualClock(), dict[str, int]()
    plan = quotes_plan(Costly(clock, each=100), schedule=schedule, budget=SECOND)
    with staged(tight=True):
        query = open_updates(plan, folder, shards=1, budget=budget)
        for number in range(40):
            clock.at = (number + 1) * SECOND
            batch: list[Quote] = [
                (f"often {dice.randrange(3000)}", n, number * SECOND + dice.randrange(SECOND))
                for n in range(800)
            ]
            if number == 1:
                batch += [(f"once {n}", n, SECOND + n) for n in range(200)]
            for row in query.feed(splits_of(batch), number).to_pylist():
                if row["symbol"].startswith("once"):
                    waits.setdefault(row["symbol"], number - 1)
    return sorted(waits.values())


@pytest.mark.usefixtures("_as_many_in_every_batch")
@pytest.mark.parametrize("schedule", ["fifo", "inplace"])
def test_rare_keys_wait_at_most_twice_as_long_with_a_small_budget(
    schedule: str, tmp_path: Path
) -> None:
    plenty, little = (
        waits_of_rare_keys(tmp_path / str(budget), budget, schedule) for budget in (PLENTY, 1 << 20)
    )
    assert len(plenty) == len(little) == 200
    assert little[-1] <= 2 * plenty[-1]


def test_oracle_rescaling_hands_over_keys_that_are_not_in_memory(tmp_path: Path) -> None:
    clock = ManualClock()
    plan = quotes_plan(Costly(clock, each=100), budget=SERVED * 100)
    plain = PlainUpdates()
    with staged(tight=True), separate_disks():
        query = open_updates(plan, tmp_path, shards=8, budget=8 * LITTLE)
        for number, splits in enumerate(scenario(6, 30_000, 2000)):
            clock.at = (number + 1) * SECOND
            rescale(query, number)
            plain.arrive(splits)
            plain.serve(query.feed(splits_of(*splits), number))
        assert len(plain.waiting) > 3000
        plain.serve(query.flush())
    assert not plain.waiting


@pytest.mark.usefixtures("_as_many_in_every_batch")
def test_bounded_ten_times_the_keys_that_fit(tmp_path: Path) -> None:
    clock = ManualClock()
    plan = quotes_plan(Costly(clock, each=1), budget=SECOND)
    with staged(tight=True):
        query = open_updates(plan, tmp_path, shards=1, budget=LITTLE)
        for number in range(12):
            clock.at = (number + 1) * SECOND
            batch: list[Quote] = [
                (f"symbol {number * 400 + n}", n, number * SECOND + n) for n in range(400)
            ]
            (delivery,) = query.driver.batch(number, splits_of(batch))
    reported = delivery.progress["icestream"]
    assert reported["updates"]["keys"] == 4800
    assert reported["updates"]["waiting"] == 12 * (400 - SERVED)


@pytest.mark.slow
def test_crash_every_step_of_a_run_with_a_small_budget(tmp_path: Path) -> None:
    script = QuotesScript(batches=6, events=800, keys=3000, budget=2 * LITTLE)
    with staged(tight=True):
        runs = CrashRuns(script, str(tmp_path))
        disk = runs.undisturbed()
        every = disk.steps // 12
        runs.crash_everywhere(lambda step: step % every == 0)
    assert runs.points >= 12
    assert runs.differences == []
