from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pytest

from icestream.core.times import Micros
from icestream.operators.latest import serving
from icestream.operators.latest.serving_ahead import SpareTime
from icestream.plan.nodes.updates import SCHEDULES
from icestream.runtime.local import LocalQuery
from tests.fixtures.update_streams import (
    SECOND,
    Costly,
    ManualClock,
    PlainUpdates,
    Quote,
    SlowFirst,
    open_updates,
    quotes_plan,
    splits_of,
)

EACH = 100_000


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock for the step and for the time between tasks."""
    return ManualClock()


@pytest.fixture
def spare(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> SpareTime:
    """Return the time between tasks, which `work()` spends."""
    made = SpareTime(clock.monotonic)
    monkeypatch.setattr(serving, "SPARE_TIME", made)
    return made


def pairs(query: LocalQuery, batch: list[Quote]) -> list[tuple[str, int]]:
    rows = query.feed(splits_of(batch)).to_pylist()
    return [(row["symbol"], row["price"]) for row in rows]


def opened(clock: ManualClock, folder: Path, schedule: str = "inplace") -> LocalQuery:
    """Return a query with time for three keys in a batch and some between batches."""
    plan = quotes_plan(Costly(clock, each=EACH), schedule=schedule, interval=3 * EACH)
    return open_updates(plan, folder, shards=1)


def learnt(clock: ManualClock, spare: SpareTime, folder: Path) -> LocalQuery:
    """Return a query with the waiting keys b to h, whose costs are known."""
    query = opened(clock, folder)
    for number, symbol in enumerate("xyz"):
        pairs(query, [(symbol, 0, number)])
    spare.expected = 3 * EACH
    pairs(query, [(symbol, 1, 100 + n) for n, symbol in enumerate("abcdefgh")])
    return query


def test_keys_served_ahead_are_those_that_are_next(
    clock: ManualClock, spare: SpareTime, tmp_path: Path
) -> None:
    """Keys wait as before, and newer values of keys that were served ahead wait again."""
    query = learnt(clock, spare, tmp_path)
    waited = query.driver.last
    assert waited is not None
    assert waited.decisions["waiting"]
    spare.work()
    found = pairs(query, [(symbol, 2, 200 + n) for n, symbol in enumerate("abcdefgh")])
    old = [symbol for symbol, price in found if price == 1]
    new = [symbol for symbol, price in found if price == 2]
    assert len(old) >= 1
    assert found == [(symbol, 1) for symbol in old] + [(symbol, 2) for symbol in new]
    rest = [(row["symbol"], row["price"]) for row in query.flush().to_pylist()]
    assert sorted(new + [symbol for symbol, _ in rest]) == list("abcdefgh")
    assert {price for _, price in rest} == {2}


def test_crash_what_was_served_ahead_is_served_again_if_it_is_lost(
    clock: ManualClock, spare: SpareTime, tmp_path: Path
) -> None:
    query = learnt(clock, spare, tmp_path)
    before = query.driver.last
    assert before is not None
    spare.work()
    (file,) = tmp_path.glob("local/**/ahead")
    file.write_bytes(file.read_bytes()[:1])
    found = pairs(query, [])
    found += [(row["symbol"], row["price"]) for row in query.flush().to_pylist()]
    assert len(found) == before.decisions["waiting"]
    assert len(set(found)) == len(found)


class Slow:
    """Work that goes on until it is told to end."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.closed = (threading.Event() for _ in range(3))

    def begin(self) -> None:
        assert not self.begun.is_set()

    def is_asked_for(self) -> bool:
        return False

    def proceed(self, left: Micros) -> bool:
        self.begun.set()
        self.may_end.wait(10)
        return True

    def close(self) -> None:
        self.closed.set()


def test_a_task_waits_for_the_slice_under_way() -> None:
    spare_time, work = SpareTime(), Slow()
    spare_time.expected = 10 * SECOND
    spare_time.offer(work)
    spare_time.begin()
    assert work.begun.wait(10)
    task = threading.Thread(target=spare_time.end)
    task.start()
    task.join(0.05)
    assert task.is_alive()
    work.may_end.set()
    task.join(10)
    assert not task.is_alive()
    assert work.closed.is_set()


class Counted(Slow):
    """Work of one of several shards, which asks for that of another one."""

    def __init__(self, slices: int, other: Counted | None = None) -> None:
        super().__init__()
        self.slices, self.other, self.asked, self.done = slices, other, False, 0

    def is_asked_for(self) -> bool:
        return self.asked

    def proceed(self, left: Micros) -> bool:
        self.done += 1
        if self.other is not None:
            self.other.asked = True
        return self.done < self.slices


def test_work_that_is_asked_for_ends_first(clock: ManualClock, spare: SpareTime) -> None:
    spare.expected = SECOND
    last = Counted(5)
    others = [Counted(5, last), Counted(5)]
    for each in (*others, last):
        spare.offer(each)
    spare.work()
    assert last.closed.is_set()
    assert [each.done for each in (*others, last)] == [5, 5, 0]


def test_bounded_waiting_for_a_slice_is_time_of_serving(
    clock: ManualClock, spare: SpareTime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that waits for the time of a key serves one key less."""
    query, served = learnt(clock, spare, tmp_path), []
    spare.expected = 0
    for waited in (0, EACH):
        monkeypatch.setattr(spare, "waited", lambda waited=waited: waited)
        query.driver.trigger = None
        served.append(len(pairs(query, [(f"n{n}", 1, 300 + n) for n in range(9)])))
    assert served[0] >= 2
    assert served[1] == served[0] - 1


def test_spare_time_is_used_after_a_slow_first_call(
    clock: ManualClock, spare: SpareTime, tmp_path: Path
) -> None:
    """The cost of a key is not known after a call that loads a model, but soon."""
    each = EACH // 10
    plan = quotes_plan(SlowFirst(clock, each=each), interval=30 * each)
    query = open_updates(plan, tmp_path, shards=1)
    spare.expected = 20 * each
    batch = [(f"s{n}", 1, n) for n in range(200)]
    assert len(pairs(query, batch)) == 1
    spare.work()
    assert len(pairs(query, [])) >= 10 + 0.5 * 30


SEEDS = [pytest.param(n, marks=pytest.mark.slow) if n > 1 else n for n in range(100)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", SEEDS)
def test_oracle_a_queue_that_serves_ahead_goes_on_after_a_lost_disk(
    seed: int, schedule: str, clock: ManualClock, spare: SpareTime, tmp_path: Path
) -> None:
    dice, plain, served = random.Random(seed), PlainUpdates(), dict[str, int]()
    query = opened(clock, tmp_path / "whole", schedule)
    for number in range(dice.randrange(6, 25)):
        clock.at = max(clock.at, (number + 1) * SECOND)
        times = sorted(random.Random(seed + number).sample(range(SECOND), dice.choice([0, 1, 20])))
        batch = [
            (f"s{int(30 * dice.random() ** 2)}", 100 * number + n, number * SECOND + at)
            for n, at in enumerate(times)
        ]
        plain.arrive([batch])
        spare.expected = dice.choice([0, 2, 5]) * EACH
        rows = pairs(query, batch)
        served.update(rows)
        spare.work()
    shutil.copytree(tmp_path / "whole", tmp_path / "lost")
    shutil.rmtree(tmp_path / "lost" / "local")
    for file in (tmp_path / "whole").glob("local/**/ahead"):
        file.unlink()
    restored = opened(clock, tmp_path / "lost", schedule)
    rest = query.flush().to_pylist()
    assert rest == restored.flush().to_pylist()
    served.update((row["symbol"], row["price"]) for row in rest)
    assert served == {symbol: price for symbol, (_, price, _) in plain.newest.items()}
