from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from examples.advertising.generator import IMPRESSION, SCHEMA
from examples.advertising.offline import (
    Rules,
    TargetingModel,
    behaviour,
    bot_lifetimes,
    examples,
    without_bots,
)
from examples.advertising.query import BIAS, BOT, SCORE, WEIGHT, Targeting
from icestream.api.events import Events
from icestream.core.times import INFINITY
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import Source
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings
from tests.oracles.plain_dataflow import PlainDataflow

pytestmark = pytest.mark.spark

TIME = pa.timestamp("us", tz="UTC")
#: all that happens, happens in here
INSTANTS = range(45)
SEEDS = range(6)
#: payload by instant: what is alive then, and how often
Bag = Counter[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def session(spark: SparkSession) -> SparkSession:
    """Aggregates are columns of Spark before they are ours."""
    return spark


def table_of(rows: Sequence[tuple[int, int, int, int]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * 4
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def some_events(seed: int, count: int = 40) -> pa.Table:
    dice = np.random.default_rng(seed)
    times = np.sort(dice.integers(0, 25, count))
    others = [dice.integers(low, high, count) for low, high in ((0, 3), (1, 4), (1, 4))]
    return table_of(list(zip(*(each.tolist() for each in (times, *others)), strict=True)))


def some_rules(seed: int) -> Rules:
    dice = np.random.default_rng(1000 + seed)
    return Rules(
        window=int(dice.integers(3, 12)),
        most_clicks=int(dice.integers(1, 4)),
        most_searches=int(dice.integers(1, 4)),
        click_within=int(dice.integers(1, 6)),
        memory=None if seed % 2 else int(dice.integers(4, 12)),
        threshold=float(dice.choice([0.0, 0.5])),
        least_examples=int(dice.integers(0, 3)),
        smoothing=float(dice.choice([0.5, 1.0])),
    )


def targeting(rules: Rules, refresh: int | None = None) -> Targeting:
    raw = Events(FromSource(SCHEMA, source=0), {})
    requests = raw.where(f"stream = {IMPRESSION}").select("user", "time AS at")
    return Targeting(raw, rules, requests, refresh)


def flow_of(step: Events, mode: str = "changes", slack: int = 0) -> Dataflow:
    sources = (Source("events", slack),)
    return compiled(((step._node, mode),), {0: 0}, sources, (SCHEMA,), TIME)


def batches_of(flow: Dataflow, events: pa.Table, seed: int) -> Iterable[tuple[pa.Table, Any]]:
    """Cut events somewhere; give all up to each cut, and the batch before it."""
    dice = np.random.default_rng(2000 + seed)
    cuts = [0, *sorted(dice.integers(0, events.num_rows, 3).tolist()), events.num_rows]
    for begin, end in pairwise(cuts):
        (piece,) = events.slice(begin, end - begin).combine_chunks().to_batches() or [None]
        if piece is not None:
            arrays = [piece.column(0), pa.array([0] * len(piece), pa.int32()), *piece.columns]
            batch = pa.RecordBatch.from_arrays(arrays, schema=flow.batch_schema)
            yield events.slice(0, end), [[batch]]


class AddedUp:
    """What the changes of a query add up to."""

    def __init__(self) -> None:
        self._changes: Counter[tuple[int, int, tuple[Any, ...]]] = Counter()

    def take(self, rows: Iterable[pa.RecordBatch]) -> None:
        for batch in rows:
            for row in batch.to_pylist():
                lifetime, change, *values = row.values()
                end = INFINITY if lifetime["end"] is None else micros(lifetime["end"])
                payload = tuple(micros(value) for value in values)
                self._changes[micros(lifetime["start"]), end, payload] += change

    def at(self, t: int) -> Bag:
        found: Bag = Counter()
        for (start, end, payload), count in self._changes.items():
            if start <= t < end:
                found[payload] += count
        return Counter({payload: count for payload, count in found.items() if count})


def micros(value: Any) -> Any:
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1e6)
    return round(value, 9) if isinstance(value, float) else value


def bag_of(table: pa.Table, names: Sequence[str]) -> Bag:
    columns = [table.column(name) for name in names]
    columns = [
        each.cast(pa.int64()) if pa.types.is_timestamp(each.type) else each for each in columns
    ]
    return Counter(
        tuple(map(micros, row)) for row in zip(*(each.to_pylist() for each in columns), strict=True)
    )


def check(step: Events, seed: int, expected: Callable[[pa.Table, int], Bag]) -> None:
    """After each batch, at every instant: the changes add up to what the past says."""
    flow = flow_of(step)
    query, answer = PlainDataflow(flow), AddedUp()
    seen = 0
    for past, batch in batches_of(flow, some_events(seed), seed):
        answer.take(query.feed(batch))
        for t in INSTANTS:
            wanted = expected(past, t)
            seen += len(wanted)
            assert answer.at(t) == wanted, (past.num_rows, t)
    assert seen


def at_instant(table: pa.Table, name: str, t: int) -> pa.Table:
    return table.filter(pa.array(np.asarray(table.column(name).cast(pa.int64())) == t))


def expected_bots(past: pa.Table, t: int, rules: Rules) -> Bag:
    found = bot_lifetimes(past, rules)
    le, re = (np.asarray(found.column(name).cast(pa.int64())) for name in ("le", "re"))
    return bag_of(found.filter(pa.array((le <= t) & (t < re))), ["user"])


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_oracle_bots(seed: int) -> None:
    rules = some_rules(seed)
    check(targeting(rules).bots, seed, lambda past, t: expected_bots(past, t, rules))


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_oracle_events_without_bots(seed: int) -> None:
    rules = some_rules(seed)

    def expected(past: pa.Table, t: int) -> Bag:
        return bag_of(at_instant(without_bots(past, rules), "time", t), SCHEMA.names)

    check(targeting(rules).clean, seed, expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_oracle_behaviour(seed: int) -> None:
    rules = some_rules(seed)

    def expected(past: pa.Table, t: int) -> Bag:
        clean = without_bots(past, rules)
        shown = at_instant(examples(clean, rules), "time", t)
        vectors = behaviour(clean, shown, rules)
        found = bag_of(
            shown.select(["user", "ad", "time"])
            .take(vectors.column("row"))
            .append_column("keyword", vectors.column("keyword"))
            .append_column("count", vectors.column("count")),
            ["user", "ad", "time", "keyword", "count"],
        )
        for row, count in bag_of(shown, ["user", "ad", "time"]).items():
            found[*row, BIAS, 1] += count
        return found

    check(targeting(rules).behaviour, seed, expected)


def expected_examples(model: TargetingModel) -> Bag:
    rows = model.examples.take(model.vectors.column("row")).append_column(
        "keyword", model.vectors.column("keyword")
    )
    found = bag_of(rows, ["ad", "keyword", "label"])
    for (ad, label), count in bag_of(model.examples, ["ad", "label"]).items():
        found[ad, BIAS, label] += count
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_oracle_examples(seed: int) -> None:
    rules = some_rules(seed)
    check(
        targeting(rules).examples,
        seed,
        lambda past, t: expected_examples(TargetingModel.at(past, t, rules)),
    )


def expected_keyword_scores(model: TargetingModel) -> Bag:
    names = ("examples_with", "clicks_with", "examples_without", "clicks_without", "z", "weight")
    found: Bag = Counter()
    for ad, keyword, n, c, m, d, z, weight in bag_of(model.keywords, ["ad", "keyword", *names]):
        found[ad, keyword, n, c, n + m, c + d, z, weight] += 1
    for ad, n, c, log_odds in bag_of(model.priors, ["ad", "examples", "clicks", "log_odds"]):
        found[ad, BIAS, n, c, n, c, 0.0, log_odds] += 1
    return found


def expected_model(model: TargetingModel) -> Bag:
    found = bag_of(model.kept, ["ad", "keyword", "z", "weight"])
    for ad, log_odds in bag_of(model.priors, ["ad", "log_odds"]):
        found[ad, BIAS, 0.0, log_odds] += 1
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_oracle_keyword_scores(seed: int) -> None:
    rules = some_rules(seed)
    query = targeting(rules)
    check(
        query.keyword_scores,
        seed,
        lambda past, t: expected_keyword_scores(TargetingModel.at(past, t, rules)),
    )
    check(query.model, seed, lambda past, t: expected_model(TargetingModel.at(past, t, rules)))


def expected_scores(past: pa.Table, model: TargetingModel, t: int) -> Bag:
    """Score everybody to whom something is shown at an instant, once."""
    shown = bag_of(at_instant(past, "time", t), ["stream", "user"])
    users = sorted({user for stream, user in shown if stream == IMPRESSION})
    found = bag_of(model.score(users), ["user", "ad", "log_odds", "probability"])
    return Counter({(user, t, *others): 1 for user, *others in found})


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_oracle_scores(seed: int) -> None:
    rules = some_rules(seed)
    check(
        targeting(rules).scores,
        seed,
        lambda past, t: expected_scores(past, TargetingModel.at(past, t, rules), t),
    )


def refreshed(past: pa.Table, t: int, rules: Rules, refresh: int) -> TargetingModel:
    """Give the model just before the last refresh, and what users have done until now."""
    last = TargetingModel.at(past, t - t % refresh - 1, rules)
    return replace(TargetingModel.at(past, t, rules), priors=last.priors, kept=last.kept)


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_oracle_a_model_that_is_refreshed_is_that_of_the_last_refresh(seed: int) -> None:
    rules, refresh = some_rules(seed), 2 + seed
    query = targeting(rules, refresh)

    check(query.model, seed, lambda past, t: expected_model(refreshed(past, t, rules, refresh)))
    check(
        query.scores,
        seed,
        lambda past, t: expected_scores(past, refreshed(past, t, rules, refresh), t),
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("step", ["bots", "clean", "behaviour", "examples", "model", "scores"])
def test_oracle_real_queries_with_shards_and_events_out_of_order(step: str, tmp_path: Path) -> None:
    rules, slack = some_rules(1), 5
    ordered = some_events(7, 120)
    times = np.asarray(ordered.column("time").cast(pa.int64()))
    jitter = np.random.default_rng(7).uniform(0, slack, len(times))
    events = ordered.take(pa.array(np.argsort(times + jitter)))

    flow = flow_of(getattr(targeting(rules, 3), step), slack=slack)
    query = LocalQuery(flow, Settings(str(tmp_path / "c"), str(tmp_path / "l"), 64 << 20))
    plain, answers = PlainDataflow(flow), (AddedUp(), AddedUp())
    for _, batch in batches_of(flow, events, 7):
        answers[0].take(query.feed(batch).to_batches())
        answers[1].take(plain.feed(batch))
        for t in INSTANTS:
            assert answers[0].at(t) == answers[1].at(t)
    query.close()
    if step == "scores":
        for t in INSTANTS:
            wanted = expected_scores(events, refreshed(events, t, rules, 3), t)
            assert answers[0].at(t) == wanted


def test_oracle_final_scores_come_once(tmp_path: Path) -> None:
    rules = some_rules(1)
    events = some_events(3, 80)
    flow = flow_of(targeting(rules, 4).scores, "append")
    query = LocalQuery(flow, Settings(str(tmp_path / "c"), str(tmp_path / "l"), 64 << 20))
    parts = [query.feed(batch) for _, batch in batches_of(flow, events, 3)]
    found = pa.concat_tables([*parts, query.flush()])
    query.close()
    wanted: Bag = Counter()
    for t in INSTANTS:
        wanted += expected_scores(events, refreshed(events, t, rules, 4), t)
    assert bag_of(found, ["user", "at", "ad", "log_odds", "probability"]) == wanted
    assert wanted


def test_oracle_what_is_told_is_what_the_steps_tell() -> None:
    rules = some_rules(1)

    def expected(past: pa.Table, t: int) -> Bag:
        model = refreshed(past, t, rules, 3)
        bots = expected_bots(past, t, rules)
        found: Bag = Counter({(BOT, user, 0, 0, 0.0, 1.0): 1 for (user,) in bots})
        for ad, keyword, z, weight in expected_model(model):
            found[WEIGHT, 0, ad, keyword, z, weight] += 1
        for user, _, ad, _, probability in expected_scores(past, model, t):
            found[SCORE, user, ad, 0, 0.0, probability] += 1
        return found

    check(targeting(rules, 3).told, 1, expected)
