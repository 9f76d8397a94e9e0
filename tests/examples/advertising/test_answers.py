from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from examples.advertising.answers import AnswerTotals, Weight, checked, weights_of
from examples.advertising.generator import AdEvents
from examples.advertising.offline import Rules, TargetingModel, bot_lifetimes, without_bots
from examples.advertising.query import BOT, SCORE, TOLD, WEIGHT

HOUR = 3_600_000_000
#: kind, user, ad, keyword, z, value, start, end, change
Row = tuple[int, int, int, int, float, float, int, int | None, int]


def moment(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(0, UTC) + timedelta(0, 0, micros)


def rows_of(rows: list[Row]) -> pa.Table:
    columns = dict(zip(TOLD, zip(*(row[:6] for row in rows), strict=True), strict=True))
    lifetimes = [{"start": moment(row[6]), "end": moment(row[7])} for row in rows]
    stamp = pa.timestamp("us", tz="UTC")
    kind = pa.struct([("start", stamp), ("end", stamp)])
    return pa.table(
        {
            "lifetime": pa.array(lifetimes, kind),
            "change": pa.array([row[8] for row in rows], pa.int32()),
            **columns,
        }
    )


def test_oracle_changes_add_up() -> None:
    #   t             0  1  2  3  4  5 ...
    #   user 7 a bot     [--------)
    #   weight of 3, 8   [--) 0.5, then 0.7
    reported = AnswerTotals()
    assert reported.bots(2) == set()
    assert reported.requests() == []
    reported.take(
        rows_of(
            [
                (BOT, 7, 0, 0, 0.0, 1.0, 1, 3, 1),
                (WEIGHT, 0, 3, 8, 2.0, 0.5, 1, None, 1),
                (SCORE, 9, 3, 0, 0.0, 0.25, 2, 3, 1),
            ]
        )
    )
    assert [reported.bots(t) for t in range(5)] == [set(), {7}, {7}, set(), set()]
    reported.take(
        rows_of(
            [
                (BOT, 7, 0, 0, 0.0, 1.0, 1, 3, -1),
                (BOT, 7, 0, 0, 0.0, 1.0, 1, 4, 1),
                (WEIGHT, 0, 3, 8, 2.0, 0.5, 1, None, -1),
                (WEIGHT, 0, 3, 8, 2.0, 0.5, 1, 2, 1),
                (WEIGHT, 0, 3, 8, 2.5, 0.7, 2, None, 1),
            ]
        )
    )
    assert [reported.bots(t) for t in range(5)] == [set(), {7}, {7}, {7}, set()]
    assert reported.weights(0) == {}
    assert reported.weights(1) == {(3, 8): Weight(2.0, 0.5)}
    assert reported.weights(99) == {(3, 8): Weight(2.5, 0.7)}
    assert reported.requests() == [(2, 9)]
    assert reported.scores(9, 2) == {3: 0.25}
    assert reported.scores(8, 2) == {}
    assert reported.scores(9, 3) == {}


def right_rows(events: pa.Table, rules: Rules, asked: int, user: int, end: int) -> list[Row]:
    """Give what a query with a refresh every hour tells, as the offline model knows it."""
    rows: list[Row] = []
    lifetimes = bot_lifetimes(events, rules)
    columns: Any = (lifetimes.column(name).cast(pa.int64()).to_pylist() for name in ("le", "re"))
    for who, le, re in zip(lifetimes["user"].to_pylist(), *columns, strict=True):
        rows.append((BOT, who, 0, 0, 0.0, 1.0, le, re, 1))
    begin = asked - asked % HOUR
    for start in range(begin - 6 * HOUR, end, HOUR):
        for (ad, keyword), each in weights_of(TargetingModel.at(events, start - 1, rules)).items():
            rows.append((WEIGHT, 0, ad, keyword, *each, start, start + HOUR, 1))
    model = TargetingModel.at(events, begin - 1, rules)
    model = TargetingModel(
        asked,
        rules,
        without_bots(events, rules),
        model.examples,
        model.vectors,
        model.priors,
        model.keywords,
        model.kept,
    )
    score = model.score([user])
    for ad, chance in zip(score["ad"].to_pylist(), score["probability"].to_pylist(), strict=True):
        rows.append((SCORE, user, ad, 0, 0.0, chance, asked, asked + 1, 1))
    return rows


def test_what_is_wrong_is_reported() -> None:
    stream = AdEvents(users=300, ads=3, keywords=10, bots=1)
    rules, end = Rules(most_clicks=10), stream.begin + 4 * HOUR
    events = stream.between(stream.begin, end)
    right = right_rows(events, rules, end - HOUR // 2, 11, end)

    def verdict(rows: list[Row]) -> tuple[str, ...]:
        reported = AnswerTotals()
        reported.take(rows_of(rows))
        found = checked(reported, events, rules, HOUR, most=6)
        assert (found.instants, found.answers) == (6, 1)
        assert found.numbers > 10
        return found.wrong

    assert verdict(right) == ()
    kinds = [row[0] for row in right]
    assert set(kinds) == {BOT, WEIGHT, SCORE}

    bots = verdict([row for row in right if row[0] != BOT])
    assert bots
    assert all("is a bot" in each for each in bots)

    late = max(place for place, kind in enumerate(kinds) if kind == WEIGHT)
    *head, z, value, start, stop, change = right[late]
    off = [*right[:late], (*head, z, value + 1e-6, start, stop, change), *right[late + 1 :]]
    weights = verdict(off)  # type: ignore[arg-type]
    assert weights
    assert all("weight" in each and "model at" in each for each in weights)

    (score,) = verdict(right[:-1])
    assert score.startswith("probability of user 11")
    assert "None instead of" in score
