"""Unions, joins and windows of update streams, through the driver and over restarts."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import InputError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.latest.join import UpdateJoin
from icestream.operators.latest.pre_queue import (
    PreQueueFilter,
    PreQueueInput,
    PreQueueJoin,
    PreQueueMap,
    PreQueueNode,
    PreQueueUnion,
    columns_of,
)
from icestream.operators.latest.saved_arrays import SavedParts, State
from icestream.operators.latest.step import UpdateStep
from icestream.operators.latest.union import UpdateUnion
from icestream.operators.latest.update_stream import UpdateStream
from icestream.operators.latest.window_serving import WindowedBy
from icestream.plan.nodes.queries import Source
from icestream.plan.nodes.updates import Latest, Updates
from icestream.runtime.exchange.refused_rows import refused_columns
from icestream.runtime.local import LocalQuery, Splits
from icestream.runtime.version.settings import Settings
from icestream.state.identities import IdRange
from icestream.state.queue.windows.spec import Semantics, UpdateWindows
from tests.fixtures.update_streams import (
    QUOTES,
    SECOND,
    Costly,
    ManualClock,
    Quote,
    open_updates,
    quotes,
    quotes_plan,
    splits_of,
)
from tests.suites.crash_runs import staged

PLENTY = 64 << 20
#: bytes of a shard that are enough for a batch, not for all keys
LITTLE = 530 << 10

#: symbol, price, time, source
Told = tuple[str, int, int, int]


def reported(rows: Sequence[Told]) -> pa.RecordBatch:
    """Return rows of several sources as ingest reads them."""
    batch = quotes([row[:3] for row in rows])
    sources = pa.array([row[3] for row in rows], pa.int32())
    return batch.set_column(1, "source", sources)


def scenario(seed: int, batches: int, *, grid: int) -> list[list[Told]]:
    dice = random.Random(seed)
    return [
        [
            (f"s{dice.randrange(6)}", 100 * batch + n, batch * 100 + grid * dice.randrange(20), s)
            for n in range(dice.choice([0, 4, 12]))
            for s in [dice.randrange(2)]
        ]
        for batch in range(batches)
    ]


def rows_of(plan: Updates, folder: Path, batches: Sequence[Splits], *, restart: bool) -> Iterator:  # type: ignore[type-arg]
    """Yield the rows that each batch makes, then those of a flush."""
    clock = plan.clock
    assert isinstance(clock, ManualClock)
    with staged():
        query: LocalQuery = open_updates(plan, folder)
        for number, splits in enumerate(batches):
            clock.at = (number + 1) * SECOND
            if restart:
                query = open_updates(plan, folder)
            yield query.feed(splits, number).to_pylist()
        yield query.flush().to_pylist()


@pytest.mark.parametrize("restart", [False, True])
def test_oracle_a_union_believes_its_source_of_truth(restart: bool, tmp_path: Path) -> None:
    clock = ManualClock()
    plan = replace(
        quotes_plan(Costly(clock), budget=15_000),
        sources=(Source("a", 0), Source("b", 0)),
        ranks=(1, 0),
    )
    stream = UpdateStream(QUOTES, ("symbol",), "ts")
    union = UpdateUnion([stream, stream], [1])
    expected: dict[str, int] = {}
    batches = scenario(3, 30, grid=10)
    for rows in batches:
        sides = [reported([row for row in rows if row[3] == s]) for s in (0, 1)]
        inputs = [pa.RecordBatch.from_arrays(b.columns[2:], schema=QUOTES) for b in sides]
        for row in union.on_batch(inputs).to_pylist():
            expected[row["symbol"]] = row["price"]
    found: dict[str, int] = {}
    times: dict[str, Any] = {}
    parts = [[[reported(rows[:5])], [reported(rows[5:])]] for rows in batches]
    for made in rows_of(plan, tmp_path, parts, restart=restart):
        for row in made:
            assert row["symbol"] not in times or times[row["symbol"]] <= row["ts"]
            times[row["symbol"]], found[row["symbol"]] = row["ts"], row["price"]
    assert found == expected
    assert union.late > 0


LEFT = UpdateStream(
    pa.schema([QUOTES.field("ts"), QUOTES.field("symbol"), ("bid", pa.int64())]), ("symbol",), "ts"
)
RIGHT = UpdateStream(
    pa.schema([QUOTES.field("ts"), QUOTES.field("symbol"), ("ask", pa.int64())]), ("symbol",), "ts"
)
BOTH = pa.schema(
    [QUOTES.field("ts"), QUOTES.field("symbol"), ("bid", pa.int64()), ("ask", pa.int64())]
)


def sides_of(rows: Sequence[Told]) -> pa.RecordBatch:
    """Return rows of two sides as ingest reads them: prices are bids or asks."""
    batch = reported(rows)
    prices = [[row[1] if row[3] == side else None for row in rows] for side in (0, 1)]
    columns = [*batch.columns[:4], *(pa.array(each, pa.int64()) for each in prices)]
    return pa.RecordBatch.from_arrays(columns, ["time", "source", "c0", "c1", "c2", "c3"])


@pytest.mark.parametrize("condition", [pytest.param(None, marks=pytest.mark.slow), "ask > bid"])
@pytest.mark.parametrize("restart", [False, True])
def test_oracle_the_newest_match_of_every_key_is_served(
    restart: bool, condition: str | None, tmp_path: Path
) -> None:
    join = PreQueueJoin(PreQueueInput((0,), LEFT), PreQueueInput((1,), RIGHT), 60, condition)
    result = join.stream.schema
    plan = replace(
        quotes_plan(Costly(ManualClock()), budget=15_000),
        sources=(Source("bids", 0), Source("asks", 0)),
        columns=BOTH,
        front=join,
    )
    clock = plan.clock
    assert isinstance(clock, ManualClock)

    def slow(rows: pa.RecordBatch) -> pa.RecordBatch:
        clock.at += 10_000 * rows.num_rows
        return rows

    plan = replace(plan, steps=(UpdateStep(slow, result, result, ("symbol",)),))
    plain = UpdateJoin(LEFT, RIGHT, within=60, condition=condition)
    batches = scenario(4, 30, grid=7)
    expected: dict[str, Any] = {}
    for rows in batches:
        for port, stream in ((0, LEFT), (1, RIGHT)):
            mine = sorted((row for row in rows if row[3] == port), key=lambda row: row[2])
            batch = sides_of(mine)
            columns = [batch.column(2), batch.column(3), batch.column(4 + port)]
            sides = [pa.RecordBatch.from_pylist([], each.schema) for each in (LEFT, RIGHT)]
            sides[port] = pa.RecordBatch.from_arrays(columns, schema=stream.schema)
            for row in plain.on_batch(sides).to_pylist():
                expected[row["symbol"]] = row
    found: dict[str, Any] = {}
    served = 0
    for made in rows_of(plan, tmp_path, [[[sides_of(rows)]] for rows in batches], restart=restart):
        for row in made:
            assert row["symbol"] not in found or found[row["symbol"]]["ts"] <= row["ts"]
            found[row["symbol"]] = row
            served += 1
    assert found == expected
    assert served > len(expected)


def windows_plan(semantics: Semantics, by: tuple[str, ...], clock: ManualClock) -> Updates:
    windowed = WindowedBy(
        QUOTES,
        ("symbol",),
        "ts",
        UpdateWindows(30, 10, semantics),
        (Aggregate("count", None, "n"), Aggregate("sum", "price", "total")),
        by,
    )
    result = windowed.operator("inplace").result.schema

    def slow(rows: pa.RecordBatch) -> pa.RecordBatch:
        clock.at += 10_000 * rows.num_rows
        return rows

    plan = replace(quotes_plan(Costly(clock), budget=15_000), windowed=windowed)
    return replace(plan, steps=(UpdateStep(slow, result, result, by),))


def test_updates_before_all_windows_are_bad_rows(tmp_path: Path) -> None:
    plan = windows_plan("eager", ("symbol",), ManualClock())
    early = splits_of([("s0", 1, -5), ("s0", 2, 0), ("s0", 3, 15)])
    settings = Settings(
        root=str(tmp_path / "checkpoint"),
        local=str(tmp_path / "local"),
        budget=32 << 20,
        shards=1,
        refused=refused_columns(),
    )
    [delivery] = LocalQuery(plan, settings).driver.batch(0, early)
    assert delivery.progress["icestream"]["badRows"] == 2
    with pytest.raises(InputError, match="after 1970-01-01"):
        open_updates(plan, tmp_path / "strict").driver.batch(0, early)


def ticks(seed: int, batches: int = 30) -> list[list[Quote]]:
    """Quotes of uneven rates, in batches; no symbol has two of one instant."""
    dice = random.Random(seed)
    found = []
    for batch in range(batches):
        instants = sorted(
            dice.sample(range(1 + 40 * batch, 41 + 40 * batch), dice.choice([0, 12, 30]))
        )
        found.append(
            [(f"s{int(4 * dice.random() ** 2)}", n % 3, t) for n, t in enumerate(instants)]
        )
    return found


@pytest.mark.parametrize("by", [("symbol",), ("symbol", "price")])
@pytest.mark.parametrize("semantics", ["lazy", pytest.param("eager", marks=pytest.mark.slow)])
def test_oracle_windows_are_whole_over_restarts(
    semantics: Semantics, by: tuple[str, ...], tmp_path: Path
) -> None:
    batches = ticks(7)
    runs = []
    for name, restart in (("running", False), ("restarted", True)):
        plan = windows_plan(semantics, by, ManualClock())
        splits: list[Splits] = [[[quotes(batch[1::2])], [quotes(batch[0::2])]] for batch in batches]
        runs.append(list(rows_of(plan, tmp_path / name, splits, restart=restart)))
    assert runs[0] == runs[1]
    rows = [row for made in runs[0] for row in made]
    every = [quote for batch in batches for quote in batch]
    ends: dict[Any, Any] = {}
    for row in rows:
        key = tuple(row[name] for name in by)
        first, last = (
            np.datetime64(row[name].replace(tzinfo=None), "us").astype(int)
            for name in ("window_start", "window_end")
        )
        inside = [q[1] for q in every if (q[0], q[1])[: len(by)] == key and first <= q[2] <= last]
        assert (row["n"], row["total"]) == (len(inside), sum(inside))
        assert key not in ends or ends[key] < last
        ends[key] = last
    assert len(rows) > 20
    assert {row["symbol"] for row in rows} == {"s0", "s1", "s2", "s3"}


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("semantics", ["lazy", "eager"])
@pytest.mark.parametrize("by", [("symbol",), ("symbol", "price")])
def test_windows_end_by_the_watermark(
    by: tuple[str, ...], semantics: Semantics, restart: bool, tmp_path: Path
) -> None:
    """A key has one tuple; another key goes on, and the watermark follows it.

    once   |--x-------|----------|
    often  |x-x-x-x-x-|x-x-x-x-x-|   the windows of `once` end although it has no later tuple
    """
    plan = replace(windows_plan(semantics, by, ManualClock()), budget=SECOND)
    batches: list[list[Quote]] = [
        [("often", 0, 1 + 1000 * n), *([("once", 7, 1 + 1000 * n)] if n == 3 else [])]
        for n in range(8)
    ]
    splits: list[Splits] = [splits_of(batch) for batch in batches]
    made = [row for rows in rows_of(plan, tmp_path, splits, restart=restart) for row in rows]
    mine = [row for row in made if row["symbol"] == "once"]
    assert mine
    assert {(row["n"], row["total"]) for row in mine} == {(1, 7)}


@pytest.mark.parametrize("semantics", ["lazy", "eager"])
def test_windows_end_in_silence(semantics: Semantics, tmp_path: Path) -> None:
    """The stream has one update; once it was idle for a second, time goes on by the clock.

    8     9     10 x  11    12    13      windows of 3 seconds every second
    |-----------------|     |     |       versions are made only when one ends
          |-----------------|     |
                |-----------------|
    """
    clock = ManualClock(10_500_000)
    plan = windows_plan(semantics, ("symbol",), clock)
    assert plan.windowed is not None
    windowed = replace(plan.windowed, windows=UpdateWindows(3 * SECOND, SECOND, semantics))
    sources = (replace(plan.sources[0], idle=SECOND),)
    query = open_updates(replace(plan, windowed=windowed, sources=sources), tmp_path, shards=1)
    ends, versions = [], 0
    for number in range(50):
        batch = [("a", 7, 10_500_000)] if number == 0 else []
        for delivery in query.driver.batch(number, splits_of(batch)):
            versions += 1
            for row in query.rows([delivery]).to_pylist():
                assert (row["n"], row["total"]) == (1, 7)
                ends.append((row["window_end"].second, clock.at // SECOND))
        clock.at += SECOND // 10
    assert ends[-1] == (12, 13)
    assert all(later >= 11 for _, later in ends)
    assert versions <= 1 + 3


@pytest.mark.parametrize("semantics", ["lazy", "eager"])
def test_bounded_windows_that_end_together_are_served_within_the_time(
    semantics: Semantics, tmp_path: Path
) -> None:
    """Busy keys have 20 tuples in a window, many quiet ones have one, and all windows end at once.

    An answer costs 10 ms, a tuple nothing.
    """
    clock = ManualClock()
    plan = replace(windows_plan(semantics, ("symbol",), clock), budget=200_000)
    query = open_updates(plan, tmp_path, shards=1)
    took = []
    for number in range(12):
        clock.at = max(clock.at, (number + 1) * SECOND)
        began, first = clock.at, 1 + 30 * number
        batch: list[Quote] = [(f"busy{n % 5}", n, first + n // 5) for n in range(100)]
        batch += [(f"quiet{n}", n, first) for n in range(300)]
        query.driver.batch(number, splits_of(batch))
        took.append(clock.at - began)
    assert max(took) <= 210_000
    assert min(took[3:]) >= 150_000


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("by", [("symbol",), ("symbol", "price")])
def test_bounded_windows_forget_keys_without_updates(
    by: tuple[str, ...], restart: bool, tmp_path: Path
) -> None:
    """Each batch brings 40 new keys, one key in each, and windows of them all are answered."""
    most, rows = {}, {}
    for forget in (None, 2000):
        clock = ManualClock()
        plan = replace(windows_plan("lazy", by, clock), budget=SECOND)
        plan = replace(plan, latest=Latest(("symbol",), "inplace", forget))
        folder = tmp_path / str(forget)
        with staged():
            query = open_updates(plan, folder, shards=1)
            made, keys = [], []
            for number in range(40):
                clock.at += SECOND
                if restart and number % 3 == 0:
                    query = open_updates(plan, folder, shards=1)
                at = 1 + 400 * number
                fresh: list[Quote] = [(f"s{number}-{n}", n % 3, at + n % 7) for n in range(40)]
                fresh += [("often", 1, at + n) for n in range(0, 40, 9)]
                (delivery,) = query.driver.batch(number, splits_of(fresh))
                made += query.rows([delivery]).to_pylist()
                keys.append(delivery.progress["icestream"]["updates"]["keys"])
        most[forget], rows[forget] = max(keys), sorted(made, key=str)
    assert rows[None] == rows[2000]
    assert len(rows[None]) > 1000
    assert most[None] > 1600
    assert most[2000] < 800


BATCHES = 20


def batch_of_new_keys(keys: int, number: int) -> list[Quote]:
    """Return a batch with as many new keys as all others, and a second tuple of earlier ones."""
    at, first = 1 + 1000 * number, keys // BATCHES * number
    batch: list[Quote] = [(f"s{first + n}", n % 7, at) for n in range(keys // BATCHES)]
    return batch + [(f"s{n}", 3, at + 7) for n in range(number, first, 37)]


def batch_of_many_tuples(keys: int, number: int) -> list[Quote]:
    """Return a batch with 6,000 tuples in any order; one key has a quarter of them."""
    dice, at = random.Random(number), 1 + 1000 * number
    owners = [dice.choice([0, 1, 1, 1]) * dice.randrange(keys) for _ in range(6000)]
    return [(f"s{n}", dice.randrange(9), at + dice.randrange(1000)) for n in owners]


def answers_with(
    memory: int,
    folder: Path,
    plan: Updates,
    keys: int,
    shards: int = 1,
    batch_of: Callable[[int, int], list[Quote]] = batch_of_new_keys,
) -> tuple[list[list[dict[str, Any]]], list[int]]:
    """Return the answers of each batch, and of a flush, and how many parts the keys then have.

    Processes restart, and now and then their disk is lost, or there is a shard less.
    """
    clock = plan.clock
    assert isinstance(clock, ManualClock)
    made, parts = list[list[dict[str, Any]]](), list[int]()
    with staged(tight=True):
        query = open_updates(plan, folder, shards=shards, budget=memory)
        for number in range(BATCHES):
            clock.at += SECOND
            if number % 4 == 2:
                query = open_updates(plan, folder, shards=shards, budget=memory)
            if number % 5 == 4:
                shutil.rmtree(folder / "local")
            if number % 6 == 4:
                shards = max(1, shards - 1)
                query.driver.rescale(1, shards=shards)
            (delivery,) = query.driver.batch(number, splits_of(batch_of(keys, number)))
            made.append(sorted(query.rows([delivery]).to_pylist(), key=str))
            parts.append(len(list(Path(folder / "local").rglob("parts-*"))))
        made.append(sorted(query.flush().to_pylist(), key=str))
    return made, parts


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        (("symbol",), 2000),
        pytest.param(("symbol",), 6000, marks=pytest.mark.slow),
        pytest.param(("symbol", "price"), 6000, marks=pytest.mark.slow),
    ],
)
def test_bounded_windows_of_more_keys_than_fit(
    by: tuple[str, ...], keys: int, tmp_path: Path
) -> None:
    """About 600 keys fit at once."""
    found = {}
    for memory in (PLENTY, LITTLE):
        plan = replace(windows_plan("lazy", by, ManualClock()), budget=600 * SECOND)
        found[memory] = answers_with(memory, tmp_path / str(memory), plan, keys)
    assert found[LITTLE][0] == found[PLENTY][0]
    assert sum(map(len, found[LITTLE][0])) > keys
    assert found[LITTLE][1][-1] >= keys // 300
    assert max(found[PLENTY][1]) == 0


def test_bounded_windows_of_batches_beyond_memory(tmp_path: Path) -> None:
    found = {}
    for memory in (PLENTY, LITTLE):
        plan = replace(windows_plan("lazy", ("symbol",), ManualClock()), budget=600 * SECOND)
        folder = tmp_path / str(memory)
        found[memory], _ = answers_with(memory, folder, plan, 300, batch_of=batch_of_many_tuples)
    assert found[LITTLE] == found[PLENTY]
    assert sum(map(len, found[LITTLE])) > 300


def large_batches_at_first(keys: int, number: int) -> list[Quote]:
    return batch_of_many_tuples(keys, number)[: 6000 if number < BATCHES // 4 else 40]


def test_bounded_parts_of_windows_are_merged(tmp_path: Path) -> None:
    found = {}
    for memory in (PLENTY, LITTLE):
        plan = replace(windows_plan("lazy", ("symbol",), ManualClock()), budget=600 * SECOND)
        folder = tmp_path / str(memory)
        found[memory] = answers_with(memory, folder, plan, 100, batch_of=large_batches_at_first)
    assert found[LITTLE][0] == found[PLENTY][0]
    assert sum(map(len, found[LITTLE][0])) > 100
    assert max(found[LITTLE][1]) > 4
    assert found[LITTLE][1][-1] == 0


@pytest.mark.slow
def test_oracle_parts_of_windows_are_divided_among_shards(tmp_path: Path) -> None:
    """Four shards become one, which has the memory of all."""
    plan = replace(windows_plan("lazy", ("symbol",), ManualClock()), budget=600 * SECOND)
    plain, _ = answers_with(PLENTY, tmp_path / "plain", plan, 4000)
    plan = replace(windows_plan("lazy", ("symbol",), ManualClock()), budget=600 * SECOND)
    found, parts = answers_with(4 * LITTLE, tmp_path / "moved", plan, 4000, shards=4)
    assert found == plain
    assert max(parts) > 4


def test_every_part_of_the_keys_of_windows_is_served(tmp_path: Path) -> None:
    """There is time for a few answers in a batch, and far more keys than fit."""
    plan = replace(windows_plan("lazy", ("symbol",), ManualClock()), budget=SECOND // 2)
    made, parts = answers_with(LITTLE, tmp_path, plan, 800)
    assert parts[-1] > 2
    assert all(len(rows) < 100 for rows in made[:-1])
    # windows of the last batch have not ended
    served = {row["symbol"] for rows in made for row in rows}
    assert served == {f"s{n}" for n in range(800 - 800 // BATCHES)}


A, B, C = PreQueueInput((0,), LEFT), PreQueueInput((1,), LEFT), PreQueueInput((2,), RIGHT)
UNION = PreQueueUnion((A, B), (1, 0))
JOIN = PreQueueJoin(UNION, C, 40)
TREES: dict[str, PreQueueNode] = {
    "filter of a union": PreQueueFilter(UNION, "bid % 3 <> 0"),
    "join of a union": JOIN,
    "filter of a join": PreQueueFilter(PreQueueJoin(A, C, 40, "ask > bid"), "(ask + bid) % 2 = 0"),
    "map of a filter of a join": PreQueueMap(
        PreQueueFilter(JOIN, "bid % 2 = 0"), ("symbol", "ts", "bid + ask AS total")
    ),
    "union of joins": PreQueueUnion((PreQueueJoin(A, C, 40), PreQueueJoin(B, C, 10)), (0, 1)),
    "join of joins": PreQueueJoin(
        PreQueueMap(PreQueueJoin(A, C, 40), ("symbol", "ts", "bid + ask AS total")),
        PreQueueFilter(B, "bid > 50"),
        60,
    ),
}


def three_inputs(seed: int, batches: int) -> list[list[Told]]:
    """Rows of three inputs; times go up from batch to batch, no input has one twice of a key."""
    dice = random.Random(seed)
    found = []
    for batch in range(batches):
        places = dice.sample(range(3 * 4 * 20), dice.choice([0, 8, 25]))
        found.append(
            [
                (f"s{n % 4}", dice.randrange(100), 1 + 20 * batch + n // 12, n // 4 % 3)
                for n in places
            ]
        )
    return found


def evaluated(text: str, row: dict[str, Any]) -> Any:
    return eval(text.replace("<>", "!=").replace(" = ", " == "), {}, row)


def plain(front: PreQueueNode, events: Sequence[Told]) -> list[dict[str, Any]]:
    """Return what a tree makes of all events, by definition."""
    if isinstance(front, PreQueueInput):
        value = front.stream.others[0]
        mine = [row for row in events if row[3] in front.numbers]
        return [{"symbol": row[0], "ts": row[2], value: row[1]} for row in mine]
    if isinstance(front, PreQueueFilter):
        return [row for row in plain(front.over, events) if evaluated(front.condition, row)]
    if isinstance(front, PreQueueMap):
        pairs = [
            (text.partition(" AS ")[2] or text, text.partition(" AS ")[0]) for text in front.columns
        ]
        return [
            {name: evaluated(text, row) for name, text in pairs}
            for row in plain(front.over, events)
        ]
    best: dict[tuple[str, int], tuple[int, dict[str, Any]]] = {}
    if isinstance(front, PreQueueUnion):
        for port, source in enumerate(front.sources):
            for row in plain(source, events):
                mine_best = -front.truth.index(port), row
                instant = row["symbol"], row["ts"]
                if instant not in best or mine_best[0] > best[instant][0]:
                    best[instant] = mine_best
    else:
        assert isinstance(front, PreQueueJoin)
        for left in plain(front.left, events):
            for right in plain(front.right, events):
                younger, older = max(left["ts"], right["ts"]), min(left["ts"], right["ts"])
                both = {**right, **left, "ts": younger}
                fits = left["symbol"] == right["symbol"] and younger - older <= front.within
                if fits and (front.condition is None or evaluated(front.condition, both)):
                    instant = left["symbol"], younger
                    if instant not in best or older > best[instant][0]:
                        best[instant] = older, both
    return [row for _, row in best.values()]


def as_travelling(rows: Sequence[Told], columns: pa.Schema) -> pa.RecordBatch:
    """Return rows of three inputs as ingest reads them."""
    symbols, values, times, inputs = ([row[place] for row in rows] for place in range(4))
    instants = pa.array(times, pa.int64()).cast(QUOTES.field("ts").type)
    made: dict[str, Any] = {"ts": instants, "symbol": pa.array(symbols, pa.string())}
    for name, wanted in (("bid", (0, 1)), ("ask", (2,))):
        shown = [
            value if one in wanted else None for value, one in zip(values, inputs, strict=True)
        ]
        made[name] = pa.array(shown, pa.int64())
    heads = [instants, pa.array(inputs, pa.int32())]
    names = ["time", "source", *(f"c{place}" for place in range(len(columns)))]
    return pa.RecordBatch.from_arrays([*heads, *(made[each.name] for each in columns)], names)


def tree_plan(front: PreQueueNode, clock: ManualClock) -> Updates:
    def slow(rows: pa.RecordBatch) -> pa.RecordBatch:
        clock.at += 10_000 * rows.num_rows
        return rows

    result = front.stream.schema
    return replace(
        quotes_plan(Costly(clock), budget=15_000),
        sources=tuple(Source(name, 0) for name in "abc"),
        columns=columns_of(front),
        front=front,
        steps=(UpdateStep(slow, result, result, ("symbol",)),),
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", TREES)
def test_oracle_trees_before_the_queue_beside_the_plain_answer(name: str, tmp_path: Path) -> None:
    front, batches = TREES[name], three_inputs(5, 12)
    plan = tree_plan(front, ManualClock())
    parts = [[[as_travelling(rows, plan.columns)]] for rows in batches]
    expected: dict[str, Any] = {}
    for row in plain(front, [row for rows in batches for row in rows]):
        if row["symbol"] not in expected or expected[row["symbol"]]["ts"] < row["ts"]:
            expected[row["symbol"]] = row
    found: dict[str, Any] = {}
    for made in rows_of(plan, tmp_path, parts, restart=True):
        for row in made:
            row["ts"] = int(row["ts"].timestamp() * 1e6)
            assert row["symbol"] not in found or found[row["symbol"]]["ts"] <= row["ts"]
            found[row["symbol"]] = row
    assert found == expected
    assert len(found) == 4


@pytest.mark.parametrize("budget", [PLENTY, pytest.param(LITTLE, id="little")])
def test_bounded_a_tree_with_more_keys_than_fit(budget: int, tmp_path: Path) -> None:
    """Each key has a bid and later an ask; in between come bids of thousands of other keys.

    The processes restart, and now and then their disk is lost. With little memory one of 16 parts
    of the keys is there at a time.
    """
    front = PreQueueJoin(UNION, C, 20_000)
    clock = ManualClock()
    plan = replace(tree_plan(front, clock), budget=60 * SECOND)
    found, kept = [], 0
    with staged(tight=True):
        query = open_updates(plan, tmp_path, shards=1, budget=budget)
        for number in range(16):
            clock.at += SECOND
            if number % 3 == 2:
                query = open_updates(plan, tmp_path, shards=1, budget=budget)
            if number % 5 == 4:
                shutil.rmtree(tmp_path / "local")
            at, side = 1 + 1000 * number, 2 if number >= 8 else number % 2
            keys = range(280 * (number % 8), 280 * (number % 8) + 280)
            told = [(f"s{key}", key + number, at + n, side) for n, key in enumerate(keys)]
            (delivery,) = query.driver.batch(number, [[as_travelling(told, plan.columns)]])
            found += query.rows([delivery]).to_pylist()
            kept = len(list(Path(tmp_path / "local").rglob("front-*")))
    assert [(row["symbol"], row["bid"], row["ask"]) for row in found] == [
        (f"s{key}", key + key // 280, key + 8 + key // 280) for key in range(2240)
    ]
    assert kept == (1 if budget == PLENTY else 16)


def test_bounded_a_tree_that_forgets_opens_the_parts_of_its_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many keys in many parts; then one key is updated, and others are forgotten each time."""
    saved, save = list[IdRange](), SavedParts.save

    def counted(self: SavedParts, ids: IdRange, state: State) -> None:
        saved.append(ids)
        save(self, ids, state)

    monkeypatch.setattr(SavedParts, "save", counted)
    clock = ManualClock()
    plan = replace(tree_plan(PreQueueJoin(UNION, C, 20_000), clock), budget=60 * SECOND)
    plan = replace(plan, latest=Latest(("symbol",), "inplace", forget=1000))
    kept = []
    with staged(tight=True):
        query = open_updates(plan, tmp_path, shards=1, budget=LITTLE)
        for number in range(16):
            clock.at += SECOND
            keys = range(260 * number, 260 * number + 260) if number < 8 else (1,)
            at = 1 + 1000 * min(number, 8) + 20 * max(0, number - 8)
            told = [
                (f"s{key}", number, at + n, side) for n, key in enumerate(keys) for side in (0, 2)
            ]
            saved.clear()
            query.driver.batch(number, [[as_travelling(told, plan.columns)]])
            kept.append((len(saved), len(set(Path(tmp_path / "local").rglob("front-*")))))
    assert kept[7][1] > 8
    # all others are opened for snapshots only
    assert sum(count == 1 for count, _ in kept[8:]) >= 4


def test_oracle_windows_over_a_join_are_over_all_its_matches(tmp_path: Path) -> None:
    front, batches = TREES["map of a filter of a join"], three_inputs(6, 12)
    windowed = WindowedBy(
        front.stream.schema,
        ("symbol",),
        "ts",
        UpdateWindows(30, 10, "lazy"),
        (Aggregate("count", None, "n"), Aggregate("sum", "total", "sum")),
        ("symbol",),
        ("n > 1",),
    )
    result = windowed.operator("inplace").result.schema
    plan = replace(
        tree_plan(front, ManualClock()),
        windowed=windowed,
        steps=(UpdateStep(_same, result, result, ("symbol",)),),
    )
    parts = [[[as_travelling(rows, plan.columns)]] for rows in batches]
    every = plain(front, [row for rows in batches for row in rows])
    answers = [row for made in rows_of(plan, tmp_path, parts, restart=True) for row in made]
    for row in answers:
        first, last = (int(row[name].timestamp() * 1e6) for name in ("window_start", "window_end"))
        inside = [
            each["total"]
            for each in every
            if each["symbol"] == row["symbol"] and first <= each["ts"] <= last
        ]
        assert (row["n"], row["sum"]) == (len(inside), sum(inside))
        assert row["n"] > 1
    assert len({row["symbol"] for row in answers}) >= 3


def _same(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def tied(seed: int) -> list[Told]:
    """Return rows of three inputs in the order of time, with many of one key and instant."""
    dice = random.Random(seed)
    times = sorted(10 * dice.randrange(1, 40) for _ in range(300))
    return [(f"s{dice.randrange(4)}", n, time, dice.randrange(3)) for n, time in enumerate(times)]


def last_of_instants(rows: Sequence[Told]) -> dict[tuple[str, int], int]:
    return {(symbol, time): value for symbol, value, time, _ in rows}


def newest_tied(what: str, rows: Sequence[Told]) -> dict[str, Any]:
    """Return the value of each key: of equal times the last counts, that of b before that of a."""
    sides = [last_of_instants([row for row in rows if row[3] == side]) for side in range(3)]
    best: dict[tuple[str, int], Any] = dict(last_of_instants(rows))
    if what == "union":
        best = {**sides[0], **sides[1]}
    elif what == "join":
        best = {}
        for (symbol, at), bid in sides[0].items():
            for (other, then), ask in sides[2].items():
                if symbol == other and abs(at - then) <= 40:
                    match = (min(at, then), bid, ask)
                    instant = symbol, max(at, then)
                    best[instant] = max(best.get(instant, match), match)
    found: dict[str, Any] = {}
    for (symbol, time), value in sorted(best.items(), key=lambda each: each[0][1]):
        found[symbol] = value[1:] if what == "join" else value
        if what == "windows":
            start = (time - 29) // 10 * 10
            inside = [
                best[key] for key in best if key[0] == symbol and start <= key[1] < start + 30
            ]
            found[symbol] = len(inside), sum(inside)
    return found


@pytest.mark.parametrize("batches", [1, 9])
@pytest.mark.parametrize("what", ["queue", "union", "join", "windows"])
def test_oracle_of_equal_times_the_last_by_position_counts(
    what: str, batches: int, tmp_path: Path
) -> None:
    rows, clock = tied(11), ManualClock()
    size = -(-len(rows) // batches)
    if what == "join":
        plan = tree_plan(PreQueueJoin(A, C, 40), clock)
        parts = [
            [[as_travelling([row for row in some if row[3] != 1], plan.columns)]]
            for some in (rows[first : first + size] for first in range(0, len(rows), size))
        ]
    else:
        plan = quotes_plan(Costly(clock), budget=15_000)
        if what == "union":
            plan = replace(plan, sources=(Source("a", 0), Source("b", 0)), ranks=(1, 0))
            rows = [row for row in rows if row[3] < 2]
        elif what == "windows":
            plan = windows_plan("lazy", ("symbol",), clock)
        told = rows if what == "union" else [(*row[:3], 0) for row in rows]
        parts = [[[reported(told[first : first + size])]] for first in range(0, len(told), size)]
    found: dict[str, Any] = {}
    for made in rows_of(plan, tmp_path, parts, restart=True):
        for row in made:
            value = row.get("price", (row.get("n"), row.get("total")))
            found[row["symbol"]] = (row["bid"], row["ask"]) if what == "join" else value
    assert found == newest_tied(what, rows)
