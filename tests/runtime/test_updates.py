from __future__ import annotations

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icestream.core.errors import BudgetError, DefinitionError, InputError
from icestream.core.units import parse_bytes
from icestream.operators.latest import serving_log
from icestream.plan.nodes.updates import SCHEDULES, Latest, Updates
from icestream.runtime.work.latest.work import Overhead
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import SEGMENTS
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


def scenario(seed: int, batches: int = 24, symbols: int = 40) -> list[list[list[Quote]]]:
    """Quotes of uneven rates in two splits, some out of order, some twice, some batches empty."""
    dice = random.Random(seed)
    price = 0
    reported = []
    for batch in range(batches):
        splits: list[list[Quote]] = [[], []]
        for _ in range(dice.choice([0, 1, 40, 80])):
            symbol = f"s{int(symbols * dice.random() ** 3)}"
            price += 1
            quote = (symbol, price, batch * SECOND + dice.randrange(-SECOND, SECOND))
            splits[dice.randrange(2)].append(quote)
        reported.append(splits)
    return reported


def reported(delivery: Any) -> dict[str, Any]:
    """Return what a version says of its updates."""
    found: dict[str, Any] = delivery.progress["icestream"]["updates"]
    return found


@pytest.mark.sample(4)
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_oracle_every_keys_newest_value_is_served(
    schedule: str, restart: bool, tmp_path: Path
) -> None:
    clock = ManualClock()
    plan = quotes_plan(Costly(clock), schedule=schedule, budget=105_000)
    plain = PlainUpdates()
    outdated = 0
    with staged():
        query = open_updates(plan, tmp_path)
        for number, splits in enumerate(scenario(1)):
            clock.at = (number + 1) * SECOND
            plain.arrive(splits)
            if restart:
                query = open_updates(plan, tmp_path)
            deliveries = query.driver.batch(number, splits_of(*splits))
            plain.serve(query.rows(deliveries))
            for delivery in deliveries:
                outdated += reported(delivery)["outdated"]
                assert reported(delivery)["waiting"] == len(plain.waiting)
        assert plain.waiting
        plain.serve(query.flush())
    assert not plain.waiting
    assert outdated >= plain.dropped > 0


def test_oracle_rescaling_at_any_batch_loses_no_value(tmp_path: Path) -> None:
    clock = ManualClock()
    plan = quotes_plan(Costly(clock), schedule="linecutting", budget=105_000)
    plain = PlainUpdates()
    with staged(), separate_disks():
        query = open_updates(plan, tmp_path, shards=8)
        for number, splits in enumerate(scenario(5)):
            clock.at = (number + 1) * SECOND
            rescale(query, number)
            plain.arrive(splits)
            plain.serve(query.feed(splits_of(*splits), number))
        assert plain.waiting
        plain.serve(query.flush())
    assert not plain.waiting


@pytest.mark.sample(2)
@pytest.mark.parametrize("schedule", ["inplace", "fifo", "linecutting"])
def test_oracle_a_restored_queue_goes_on_as_the_one_before(schedule: str, tmp_path: Path) -> None:
    found = []
    for name in ("running", "restarted"):
        clock = ManualClock()
        # calls of one key: what is served when does not depend on what was learnt of costs
        plan = quotes_plan(Costly(clock, each=SECOND), schedule=schedule, budget=1)
        rows = []
        with staged():
            query = open_updates(plan, tmp_path / name, shards=1)
            for number, splits in enumerate(scenario(2)):
                clock.at = (number + 1) * 10 * SECOND
                if name == "restarted":
                    query = open_updates(plan, tmp_path / name, shards=1)
                rows.append(query.feed(splits_of(*splits), number).to_pylist())
        found.append(rows)
    assert found[0] == found[1]
    assert any(found[0])


def test_oracle_keys_are_served_in_schedule_order(tmp_path: Path) -> None:
    #      1   2   3   4       inplace: by the first update that waits, a b c
    #  a   x           x       fifo: by the last one, b c a
    #  b       x
    #  c           x
    batch: list[Quote] = [("a", 1, 1), ("b", 2, 2), ("c", 3, 3), ("a", 4, 4)]
    orders = {}
    for schedule in ("inplace", "fifo"):
        plan = quotes_plan(Costly(ManualClock(SECOND)), schedule=schedule)
        query = open_updates(plan, tmp_path / schedule, shards=1)
        orders[schedule] = query.feed(splits_of(batch)).column("symbol").to_pylist()
    assert orders == {"inplace": ["a", "b", "c"], "fifo": ["b", "c", "a"]}


def test_superseded_updates_do_not_travel(tmp_path: Path) -> None:
    query = open_updates(quotes_plan(Costly(ManualClock())), tmp_path)
    many: list[Quote] = [("a", n, n) for n in range(1000)]
    (delivery,) = query.driver.batch(0, splits_of(many, many))
    assert delivery.progress["icestream"]["entries"] == 2
    assert reported(delivery)["supersededInTransit"] == 1998
    assert query.rows([delivery]).column("price").to_pylist() == [999]


def test_an_update_that_is_older_than_what_was_taken_is_dropped_and_counted(tmp_path: Path) -> None:
    query = open_updates(quotes_plan(Costly(ManualClock())), tmp_path)
    assert query.feed(splits_of([("a", 1, 100)])).num_rows == 1
    (delivery,) = query.driver.batch(1, splits_of([("a", 2, 99)]))
    assert query.rows([delivery]).num_rows == 0
    assert reported(delivery)["outdated"] == 1
    assert query.feed(splits_of([("a", 3, 100)])).column("price").to_pylist() == [3]


def test_waiting_keys_are_served_on_idle_ticks(tmp_path: Path) -> None:
    clock = ManualClock()
    plan = quotes_plan(Costly(clock), budget=105_000)
    query = open_updates(plan, tmp_path, shards=1)
    batch: list[Quote] = [(f"s{n}", n, n) for n in range(25)]
    assert query.feed(splits_of(batch)).num_rows == 10
    assert [query.feed(splits_of([]), n).num_rows for n in (1, 2)] == [10, 5]
    assert query.driver.batch(3, splits_of([])) == []


def test_a_flush_serves_everything_that_waits(tmp_path: Path) -> None:
    plan = quotes_plan(Costly(ManualClock()), budget=105_000)
    query = open_updates(plan, tmp_path, shards=1)
    batch: list[Quote] = [(f"s{n}", n, n) for n in range(25)]
    assert query.feed(splits_of(batch)).num_rows == 10
    assert query.flush().num_rows == 15
    (again,) = query.driver.flush()
    assert again.again
    assert query.feed(splits_of([("s0", 1, 30)])).num_rows == 1


def test_without_keys_every_event_replaces_the_last(tmp_path: Path) -> None:
    query = open_updates(quotes_plan(Costly(ManualClock()), keys=()), tmp_path)
    assert query.feed(splits_of([("a", 1, 1), ("b", 2, 2)])).to_pylist()[0]["symbol"] == "b"


def test_without_a_schedule_every_event_is_served(tmp_path: Path) -> None:
    clock = ManualClock()
    query = open_updates(quotes_plan(Costly(clock), schedule=None), tmp_path, ticker=False)
    many: list[Quote] = [("a", n, n) for n in range(1000)]
    (delivery,) = query.driver.batch(0, splits_of(many))
    assert sorted(query.rows([delivery]).column("price").to_pylist()) == list(range(1000))
    assert clock.at == 1000 * 10_000
    assert reported(delivery)["served"] == 1000
    again = open_updates(quotes_plan(Costly(clock), schedule=None), tmp_path, ticker=False)
    assert again.feed(splits_of([("b", 1, 1)])).num_rows == 1


def test_staleness_is_that_of_the_definition(tmp_path: Path) -> None:
    # one key, quoted at 1 s; served by the batch at 3 s, which commits at 4 s: 0 for a second, then
    # up to 3 s; quoted again at 5 s and seen, not yet delivered, at 7 s
    clock = ManualClock()
    query = open_updates(quotes_plan(Costly(clock, each=SECOND)), tmp_path, shards=1)
    clock.at = 3 * SECOND
    query.feed(splits_of([("a", 1, 1 * SECOND)]))
    clock.at = 6 * SECOND
    (delivery,) = query.driver.batch(1, splits_of([("a", 2, 5 * SECOND)]))
    whole = reported(delivery)["totalStaleness"]
    assert whole["averageMs"] == pytest.approx(1000 * (9 / 2 + 4 / 2) / 6)
    assert whole["maxMs"] == 3000
    assert reported(delivery)["staleness"]["averageMs"] == pytest.approx(1000 * (4 / 2) / 3)
    # in the queue it waited from 1 s to 3 s, and from 5 s to 6 s
    queued = reported(delivery)["totalQueueStaleness"]
    assert queued["averageMs"] == pytest.approx(1000 * (4 / 2 + 1 / 2) / 6, abs=0.001)
    assert queued["maxMs"] == 2000
    assert queued["ofKeys"]["maxMs"] == pytest.approx(queued["averageMs"], rel=0.1)
    assert reported(delivery)["queueStaleness"]["averageMs"] == pytest.approx(
        1000 / 2 / 3, abs=0.001
    )


def test_replayed_updates_are_as_stale_as_they_are_old(tmp_path: Path) -> None:
    age = 400_000_000 * SECOND
    clock = ManualClock(1_700_000_000 * SECOND)
    query = open_updates(quotes_plan(Costly(clock, each=1)), tmp_path, shards=1)
    for number in range(4):
        clock.at += SECOND
        quotes = [(f"s{key}", number, clock.at - age) for key in range(30)]
        (delivery,) = query.driver.batch(number, splits_of(quotes))
    for name in ("staleness", "queueStaleness", "totalStaleness", "totalQueueStaleness"):
        stale = reported(delivery)[name]
        assert stale["averageMs"] <= stale["maxMs"]
        assert stale["maxMs"] == pytest.approx(age / 1000, rel=0.01)
        assert stale["p50Ms"] >= 0.45 * age / 1000


def test_bounded_a_version_logs_one_row_for_each_key(tmp_path: Path) -> None:
    plan = quotes_plan(Costly(ManualClock()), budget=105_000)
    query = open_updates(plan, tmp_path, shards=1)
    batch: list[Quote] = [(f"s{n % 25}", n, n) for n in range(2500)]
    query.feed(splits_of(batch, batch))
    (path,) = (tmp_path / "checkpoint" / SEGMENTS).iterdir()
    reader = SegmentReader(query.files, str(path))
    rows = dict(zip(reader.directory["synopsis"], reader.directory["rows"], strict=True))
    reader.close()
    assert rows == {0: 0, 1: 15, 2: 10}


def test_bounded_a_batch_beyond_the_budget_is_a_clear_error(tmp_path: Path) -> None:
    query = open_updates(quotes_plan(Costly(ManualClock())), tmp_path, shards=1, budget=8 << 20)
    many: list[Quote] = [(f"a symbol with a long name {n:060}", n, n) for n in range(80_000)]
    with pytest.raises(BudgetError, match=r'Give the query at least \.memory\("\d+ [KM]B"\)'):
        query.feed(splits_of(many))


@pytest.mark.parametrize(
    ("count", "shards", "digits"), [(15_000, 1, 20), (15_000, 2, 20), (5_000, 1, 200)]
)
def test_memory_that_an_error_of_updates_asks_for_is_enough(
    tmp_path: Path, count: int, shards: int, digits: int
) -> None:
    """Three batches of keys that all come once, each beyond the first budget."""

    def run(memory: str) -> None:
        plan = quotes_plan(Costly(ManualClock()))
        query = open_updates(plan, tmp_path / memory, shards=shards, budget=parse_bytes(memory))
        try:
            for first in range(0, 3 * count, count):
                query.feed(splits_of([(f"{first + n:0{digits}}", n + 1, n) for n in range(count)]))
        finally:
            query.close()

    with pytest.raises(BudgetError) as raised:
        run(f"{shards} MB")
    advice = rf'Give the query at least \.memory\("(\d+ [KM]B)"\)\.shards\({shards}\)'
    found = re.match(advice, str(raised.value))
    assert found is not None, str(raised.value)
    run(found[1])


def test_bounded_keys_leave_in_parts_that_fit_beside_a_batch(tmp_path: Path) -> None:
    """A batch takes half of the memory; an eighth of the keys at once would take the rest."""
    query = open_updates(quotes_plan(Costly(ManualClock())), tmp_path, shards=1, budget=2924 << 10)
    for first in range(0, 45_000, 15_000):
        query.feed(splits_of([(f"{first + n:020}", n + 1, n) for n in range(15_000)]))


def test_a_step_that_changes_the_key_is_told_so(tmp_path: Path) -> None:
    def other(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.set_column(1, "symbol", pa.array(["z"] * rows.num_rows))

    step: Any = other
    step.clock = ManualClock()
    query = open_updates(quotes_plan(step), tmp_path)
    with pytest.raises(InputError, match="may not change the key"):
        query.feed(splits_of([("a", 1, 1)]))


def test_overhead_is_what_all_but_one_of_the_last_batches_stayed_below() -> None:
    overhead = Overhead()
    overhead.learn(30.0)
    assert overhead.expected(1.0) == 0.25
    for seconds in (0.2, 0.9, 0.3, 0.25):
        overhead.learn(seconds)
    assert overhead.expected(1.0) == 0.3


def test_crash_every_step_of_a_run(tmp_path: Path) -> None:
    with staged():
        runs = CrashRuns(QuotesScript(batches=8, events=120, keys=80), str(tmp_path))
        disk = runs.undisturbed()
        every = disk.steps // 24
        runs.crash_everywhere(lambda step: step % every == 0)
    assert runs.points >= 24
    assert runs.differences == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("schedule", ["linecutting", "fifo"])
def test_oracle_steps_share_a_queue_as_if_it_were_their_own(
    schedule: str, restart: bool, tmp_path: Path
) -> None:
    clock = ManualClock()
    plan = shared_plan(Costly(clock), Costly(clock, each=30_000), schedule=schedule)
    plain = [PlainUpdates(), PlainUpdates()]
    with staged():
        query = open_updates(plan, tmp_path)
        for number, splits in enumerate(scenario(1)):
            clock.at = (number + 1) * SECOND
            for each in plain:
                each.arrive(splits)
            if restart:
                query = open_updates(plan, tmp_path)
            deliveries = query.driver.batch(number, splits_of(*splits))
            for view, each in enumerate(plain):
                each.serve(query.rows(deliveries, view))
            for delivery in deliveries:
                waiting = set(plain[0].waiting) | set(plain[1].waiting)
                assert reported(delivery)["waiting"] == len(waiting)
        assert len(plain[1].waiting) > len(plain[0].waiting)
        deliveries = query.driver.flush()
        for view, each in enumerate(plain):
            each.serve(query.rows(deliveries, view))
    assert not plain[0].waiting
    assert not plain[1].waiting


def test_oracle_a_restored_queue_goes_on_for_every_step_that_shares_it(tmp_path: Path) -> None:
    found = []
    for name in ("running", "restarted"):
        clock = ManualClock()
        plan = shared_plan(Costly(clock, each=SECOND), Costly(clock, each=SECOND), budget=1)
        rows = []
        with staged():
            query = open_updates(plan, tmp_path / name, shards=1)
            for number, splits in enumerate(scenario(2)):
                clock.at = (number + 1) * 10 * SECOND
                if name == "restarted":
                    query = open_updates(plan, tmp_path / name, shards=1)
                deliveries = query.driver.batch(number, splits_of(*splits))
                rows.append([query.rows(deliveries, view).to_pylist() for view in (0, 1)])
        found.append(rows)
    assert found[0] == found[1]
    assert any(found[0])


def test_steps_over_all_and_over_the_newest_side_by_side(tmp_path: Path) -> None:
    clock = ManualClock()
    newest = quotes_plan(Costly(clock), budget=105_000)
    every = quotes_plan(Costly(clock, each=1_000), schedule=None)
    plan = replace(newest, steps=(*every.steps, *newest.steps))
    query = open_updates(plan, tmp_path, shards=1)
    many: list[Quote] = [(f"s{n % 20}", n, n) for n in range(50)]
    (delivery,) = query.driver.batch(0, splits_of(many))
    assert sorted(query.rows([delivery], 0).column("price").to_pylist()) == list(range(50))
    # 50 ms went to every event, the rest of 105 ms to 5 of the newest
    assert query.rows([delivery], 1).column("price").to_pylist() == [40, 41, 42, 43, 44]
    assert reported(delivery)["waiting"] == 15
    assert reported(delivery)["supersededInTransit"] == 30


def shared_plan(*steps: Costly, schedule: str = "inplace", budget: int | None = 205_000) -> Updates:
    """Return steps over one queue."""
    plans = [quotes_plan(step, schedule=schedule, budget=budget) for step in steps]
    return replace(plans[0], steps=tuple(plan.steps[0] for plan in plans))


@pytest.mark.parametrize("restart", [False, True])
def test_bounded_keys_without_news_are_forgotten(restart: bool, tmp_path: Path) -> None:
    clock = ManualClock()
    plan = quotes_plan(Costly(clock, each=1), budget=10 * SECOND)
    plan = replace(plan, latest=Latest(("symbol",), "inplace", forget=5 * SECOND))
    most = 0
    with staged():
        query = open_updates(plan, tmp_path, shards=1)
        for number in range(24):
            clock.at = (number + 1) * SECOND
            if restart:
                query = open_updates(plan, tmp_path, shards=1)
            fresh: list[Quote] = [(f"s{number}-{n}", n + 1, number * SECOND) for n in range(20)]
            (delivery,) = query.driver.batch(number, splits_of(fresh))
            assert reported(delivery)["served"] == 20
            most = max(most, reported(delivery)["keys"])
    assert 100 <= most <= 140


def test_shards_without_updates_forget_keys_by_the_time_of_the_others(tmp_path: Path) -> None:
    clock = ManualClock()
    plan = quotes_plan(Costly(clock, each=1), budget=SECOND)
    plan = replace(plan, latest=Latest(("symbol",), "inplace", forget=5 * SECOND))
    query = open_updates(plan, tmp_path, shards=4)
    for number in range(4):
        clock.at = 10 * (number + 1) * SECOND
        batch: list[Quote] = [(f"s{n}", n, 0) for n in range(50)] if number == 0 else []
        (delivery,) = query.driver.batch(number, splits_of([*batch, ("on", 1, clock.at)]))
    assert reported(delivery)["keys"] == 1


@pytest.mark.parametrize("replayed", [0, 10**16])
@pytest.mark.parametrize("alone", [False, True])
def test_one_time_from_the_future_forgets_nobody(
    replayed: int, alone: bool, tmp_path: Path
) -> None:
    """Neither among the updates of a batch nor as its only one, live or long afterwards."""
    clock = ManualClock()
    plan = quotes_plan(Costly(clock, each=1), budget=SECOND)
    plan = replace(plan, latest=Latest(("symbol",), "inplace", forget=60 * SECOND))
    query = open_updates(plan, tmp_path, shards=1)
    for number in range(6):
        clock.at = replayed + (number + 1) * SECOND
        batch: list[Quote] = [(f"s{n}", number, number * SECOND) for n in range(20) if number == 0]
        if number == 2:
            batch = [("ahead", 1, 10**15)]
        if number != 2 or not alone:
            batch += [("a", number, number * SECOND), ("b", number, number * SECOND)]
        (delivery,) = query.driver.batch(number, splits_of(batch))
    assert reported(delivery)["keys"] == 23


def test_forgotten_keys_count_in_averages_as_long_as_they_were_known(tmp_path: Path) -> None:
    clock = ManualClock()
    plan = quotes_plan(Costly(clock, each=1), budget=SECOND)
    plan = replace(plan, latest=Latest(("symbol",), "inplace", forget=5 * SECOND))
    query = open_updates(plan, tmp_path, shards=1)
    for number in range(12):
        clock.at = (number + 1) * SECOND
        symbols = [f"old{n}" for n in range(500)] if number == 0 else ["a", "b"]
        quotes = [(symbol, number, number * SECOND) for symbol in symbols]
        (delivery,) = query.driver.batch(number, splits_of(quotes))
        for name in ("totalStaleness", "totalQueueStaleness"):
            stale = reported(delivery)[name]
            assert stale["averageMs"] <= stale["maxMs"]
    assert reported(delivery)["keys"] == 2
    # each old key was stale for a second, of the seven for which it was known
    assert reported(delivery)["totalStaleness"]["averageMs"] < 200


def test_steps_over_every_event_report_no_staleness(tmp_path: Path) -> None:
    clock = ManualClock()
    query = open_updates(quotes_plan(Costly(clock), schedule=None), tmp_path)
    (delivery,) = query.driver.batch(0, splits_of([("a", 1, 1)]))
    assert not [name for name in reported(delivery) if "taleness" in name]


def restarted_order(
    seed: int, schedule: str, folder: Path, *, lost: bool
) -> list[list[tuple[str, int]]]:
    """Return what batches serve, in order; with `lost` the local disk is lost before each."""
    dice, clock, found = random.Random(seed), ManualClock(), []
    symbols, served = dice.choice([5, 30, 200]), dice.choice([1, 3, 12])
    plan = quotes_plan(Costly(clock, each=50_000), schedule=schedule, budget=served * 50_000)
    with staged():
        query = open_updates(plan, folder, shards=1)
        for number in range(dice.randrange(6, 25)):
            clock.at = max(clock.at, (number + 1) * SECOND)
            batch: list[Quote] = []
            for price in range(dice.choice([0, 1, 10, 60])):
                at = number * SECOND + dice.randrange(SECOND)
                at = at // 100_000 * 100_000 if dice.random() < 0.5 else at
                batch.append((f"s{int(symbols * dice.random() ** 2)}", price, at))
            if lost:
                shutil.rmtree(folder / "local", ignore_errors=True)
                query = open_updates(plan, folder, shards=1)
            rows = query.feed(splits_of(batch), number).to_pylist()
            found.append([(row["symbol"], row["price"]) for row in rows])
    return found


SEEDS = [pytest.param(n, marks=pytest.mark.slow) if n > 1 else n for n in range(100)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", SEEDS)
def test_oracle_a_lost_disk_serves_the_same_keys_in_the_same_order(
    seed: int, schedule: str, tmp_path: Path
) -> None:
    runs = [
        restarted_order(seed, schedule, tmp_path / str(lost), lost=lost) for lost in (False, True)
    ]
    assert runs[0] == runs[1]


def switching_plan(clock: ManualClock) -> Updates:
    plan = quotes_plan(Costly(clock, each=10_000), interval=SECOND)
    return replace(plan, latest=Latest(("symbol",), "inplace", under="load"))


@pytest.mark.parametrize("restart", [False, True])
def test_all_events_are_processed_while_the_load_allows_it(restart: bool, tmp_path: Path) -> None:
    clock = ManualClock()
    plan = switching_plan(clock)
    query = open_updates(plan, tmp_path, shards=1)
    modes, served = [], []
    # 10 ms each: 50 events take half a second, 300 three; 4 symbols
    for number, count in enumerate([50] * 4 + [300] * 6 + [50] * 8):
        clock.at = max(clock.at, (number + 1) * SECOND)
        if restart:
            query = open_updates(plan, tmp_path, shards=1)
        batch: list[Quote] = [(f"s{n % 4}", n, number * SECOND + n) for n in range(count)]
        (delivery,) = query.driver.batch(
            number, splits_of(batch[: count // 2], batch[count // 2 :])
        )
        prices = query.rows([delivery]).column("price").to_pylist()
        modes.append(reported(delivery)["mode"])
        served.append(len(prices))
        assert set(prices) >= set(range(count - 4, count))
        if modes[-1] == "append" and served[-1] > 4:
            assert sorted(prices) == list(range(count))
    assert modes == ["append"] * 6 + ["update"] * 6 + ["append"] * 6
    assert served[:6] == [50] * 4 + [300] * 2
    assert served[6:10] == [4] * 4
    assert served[-5:] == [50] * 5


def test_a_batch_that_would_take_far_too_long_is_not_processed_whole(tmp_path: Path) -> None:
    clock = ManualClock()
    query = open_updates(switching_plan(clock), tmp_path, shards=1)
    query.feed(splits_of([("a", 1, 1)]))
    many: list[Quote] = [(f"s{n % 4}", n, n) for n in range(1000)]
    assert query.feed(splits_of(many)).num_rows == 4


def test_a_checkpoint_in_an_order_that_was_removed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = quotes_plan(Costly(ManualClock(), each=SECOND), budget=1)
    query = open_updates(plan, tmp_path, shards=1)
    query.feed(splits_of([("a", 1, 1), ("b", 2, 2)]))
    monkeypatch.setattr(serving_log, "SCHEDULES", {"fifo": 0})
    shutil.rmtree(tmp_path / "local", ignore_errors=True)
    with pytest.raises(DefinitionError, match="schedule='inplace' and trigger"):
        open_updates(plan, tmp_path, shards=1).feed(splits_of([("c", 3, 3)]), 1)
