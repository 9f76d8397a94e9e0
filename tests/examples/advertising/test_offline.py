from __future__ import annotations

from collections import Counter
from math import exp, log, sqrt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.advertising.generator import CLICK, IMPRESSION, SCHEMA, SEARCH, AdEvents
from examples.advertising.offline import (
    Rules,
    TargetingModel,
    behaviour,
    bot_lifetimes,
    examples,
    kept,
    keyword_scores,
    known_at,
    priors,
    without_bots,
)
from icestream.core.errors import DefinitionError

#: time, stream, user, ad or keyword
Row = tuple[int, int, int, int]

SMALL = Rules(
    window=6, most_clicks=2, most_searches=3, click_within=4, threshold=0.5, least_examples=1
)
HOUR = 3_600_000_000


def table_of(rows: list[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * 4
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Give the rows with times as microseconds."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        for column in table.columns
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


# The definitions, read literally.


def is_bot(rows: list[Row], user: int, t: int, rules: Rules) -> bool:
    alive = Counter(
        stream for le, stream, who, _ in rows if who == user and le <= t < le + rules.window
    )
    return alive[CLICK] > rules.most_clicks or alive[SEARCH] > rules.most_searches


def vector(rows: list[Row], user: int, t: int, rules: Rules) -> dict[int, int]:
    return dict(
        Counter(
            keyword
            for le, stream, who, keyword in rows
            if stream == SEARCH and who == user and le <= t < le + rules.window
        )
    )


def labelled(rows: list[Row], rules: Rules) -> list[tuple[int, int, int, int, int]]:
    found = []
    for t, stream, user, ad in rows:
        if stream == IMPRESSION:
            clicked = any(
                other == CLICK and (who, what) == (user, ad) and t <= at < t + rules.click_within
                for at, other, who, what in rows
            )
            found.append((t, user, ad, int(clicked), t + rules.click_within))
    return sorted(found)


rows_strategy = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 2), st.integers(1, 3), st.integers(1, 3)),
    max_size=40,
)
rules_strategy = st.builds(
    Rules,
    window=st.integers(1, 12),
    most_clicks=st.integers(0, 3),
    most_searches=st.integers(0, 3),
    click_within=st.integers(1, 6),
    memory=st.none() | st.integers(1, 12),
    threshold=st.sampled_from([0.0, 0.5, 1.5]),
    least_examples=st.integers(0, 3),
    smoothing=st.sampled_from([0.5, 1.0]),
)


@given(rows=rows_strategy, rules=rules_strategy)
def test_oracle_bots_are_their_definition(rows: list[Row], rules: Rules) -> None:
    events = table_of(rows)
    left = [row for row in rows if not is_bot(rows, row[2], row[0], rules)]
    assert rows_of(without_bots(events, rules)) == left
    lifetimes = rows_of(bot_lifetimes(events, rules))
    for user in range(1, 4):
        mine = [(le, re) for who, le, re in lifetimes if who == user]
        for t in range(-1, 40):
            inside = sum(le <= t < re for le, re in mine)
            assert inside == is_bot(rows, user, t, rules)
        # as few lifetimes as possible: none begins where another ends
        assert not {le for le, _ in mine} & {re for _, re in mine}


@given(rows=rows_strategy, rules=rules_strategy)
def test_oracle_behaviour_is_its_definition(rows: list[Row], rules: Rules) -> None:
    instants = [(t, user) for t in range(0, 30, 3) for user in range(1, 5)]
    at = pa.table({"time": [t for t, _ in instants], "user": [user for _, user in instants]})
    expected = [
        (row, keyword, count)
        for row, (t, user) in enumerate(instants)
        for keyword, count in sorted(vector(rows, user, t, rules).items())
    ]
    assert rows_of(behaviour(table_of(rows), at, rules)) == expected


@given(rows=rows_strategy, rules=rules_strategy, t=st.integers(0, 30))
def test_oracle_examples_are_their_definition(rows: list[Row], rules: Rules, t: int) -> None:
    found = examples(table_of(rows), rules)
    expected = labelled(rows, rules)
    assert rows_of(found) == expected
    assert rows_of(known_at(found, t, rules)) == [
        row
        for row in expected
        if row[4] <= t and (rules.memory is None or t < row[4] + rules.memory)
    ]


@given(rows=rows_strategy, rules=rules_strategy)
def test_oracle_keyword_scores_are_their_definition(rows: list[Row], rules: Rules) -> None:
    events = table_of(rows)
    found = examples(events, rules)
    scores = keyword_scores(found, behaviour(events, found, rules), rules)
    expected = []
    for ad in range(1, 4):
        mine = [
            (label, vector(rows, user, t, rules))
            for t, user, what, label, _ in labelled(rows, rules)
            if what == ad
        ]
        for keyword in range(1, 4):
            having = [label for label, keywords in mine if keyword in keywords]
            lacking = [label for label, keywords in mine if keyword not in keywords]
            if having:
                counts = (len(having), sum(having), len(lacking), sum(lacking))
                expected.append((ad, keyword, *counts, *expected_score(having, lacking, rules)))
    assert len(rows_of(scores)) == len(expected)
    for row, wanted in zip(rows_of(scores), expected, strict=True):
        assert row == pytest.approx(wanted)
    assert rows_of(kept(scores, rules)) == [
        row
        for row in rows_of(scores)
        if abs(row[6]) > rules.threshold and row[2] >= rules.least_examples
    ]


def expected_score(having: list[int], lacking: list[int], rules: Rules) -> tuple[float, float]:
    everything = having + lacking
    clicks, others = sum(everything), len(everything) - sum(everything)
    z = 0.0
    if lacking and clicks and others:
        rate = clicks / len(everything)
        spread = sqrt(rate * (1 - rate) * (1 / len(having) + 1 / len(lacking)))
        z = (sum(having) / len(having) - sum(lacking) / len(lacking)) / spread
    among_clicked = (sum(having) + rules.smoothing) / (clicks + 2 * rules.smoothing)
    not_clicked = len(having) - sum(having)
    among_others = (not_clicked + rules.smoothing) / (others + 2 * rules.smoothing)
    return z, log(among_clicked / among_others)


@given(rows=rows_strategy, rules=rules_strategy, t=st.integers(0, 30))
def test_oracle_scores_are_their_definition(rows: list[Row], rules: Rules, t: int) -> None:
    model = TargetingModel.at(table_of(rows), t, rules)
    past = [row for row in rows if row[0] <= t]
    clean = [row for row in past if not is_bot(past, row[2], row[0], rules)]
    assert rows_of(model.events) == clean
    known = [
        row
        for row in labelled(clean, rules)
        if row[4] <= t and (rules.memory is None or t < row[4] + rules.memory)
    ]
    assert rows_of(model.examples) == known
    weights = {(row[0], row[1]): row[7] for row in rows_of(model.kept)}
    expected = []
    users = [3, 1, 4, 1]
    for user in users:
        keywords = vector(clean, user, t, rules)
        for ad in sorted({row[2] for row in known}):
            labels = [row[3] for row in known if row[2] == ad]
            log_odds = log(
                (sum(labels) + rules.smoothing) / (len(labels) - sum(labels) + rules.smoothing)
            )
            log_odds += sum(weights.get((ad, keyword), 0.0) for keyword in keywords)
            expected.append((user, ad, log_odds, 1 / (1 + exp(-log_odds))))
    found = rows_of(model.score(users))
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        assert row == pytest.approx(wanted)


@given(rows=rows_strategy, rules=rules_strategy, t=st.integers(0, 20))
def test_the_future_does_not_show(rows: list[Row], rules: Rules, t: int) -> None:
    whole = TargetingModel.at(table_of(rows), t, rules)
    past = TargetingModel.at(table_of([row for row in rows if row[0] <= t]), t, rules)
    assert whole.examples.equals(past.examples)
    assert whole.kept.equals(past.kept)
    assert whole.score([1, 2, 3]).equals(past.score([1, 2, 3]))


def test_a_bot_is_one_from_the_act_too_many_until_acts_are_forgotten() -> None:
    #   clicks at 0, 2, 4, each alive for 6; more than two are alive in [4, 6)
    #   0 [-----------)
    #   2     [-----------)
    #   4         [-----------)
    #   bot       [---)
    clicks = [(t, CLICK, 1, 9) for t in (0, 2, 4)]
    others = [(t, IMPRESSION, user, 9) for t in (3, 4, 5, 6) for user in (1, 2)]
    events = table_of(sorted(clicks + others))
    assert rows_of(bot_lifetimes(events, SMALL)) == [(1, 4, 6)]
    dropped = set(rows_of(events)) - set(rows_of(without_bots(events, SMALL)))
    assert dropped == {(4, CLICK, 1, 9), (4, IMPRESSION, 1, 9), (5, IMPRESSION, 1, 9)}


def test_a_click_at_the_same_instant_counts_and_one_at_the_end_does_not() -> None:
    def label(click: int) -> int:
        rows = [(10, IMPRESSION, 1, 5), (click, CLICK, 1, 5)]
        return int(examples(table_of(rows), SMALL).column("label")[0].as_py())

    assert [t for t in range(5, 20) if label(t)] == [10, 11, 12, 13]


def test_clicks_of_others_and_on_others_label_nothing() -> None:
    rows = [(10, IMPRESSION, 1, 5), (11, CLICK, 2, 5), (11, CLICK, 1, 6)]
    assert rows_of(examples(table_of(rows), SMALL)) == [(10, 1, 5, 0, 14)]


def test_oracle_a_model_by_hand() -> None:
    # users 1 and 2 search for 7 and click ad 5; users 3 and 4 do not search, nor click
    rows: list[Row] = [(0, SEARCH, user, 7) for user in (1, 2)]
    rows += [(1, IMPRESSION, user, 5) for user in (1, 2, 3, 4)]
    rows += [(2, CLICK, user, 5) for user in (1, 2)]
    rows += [(5, SEARCH, 9, 7), (5, SEARCH, 9, 7)]
    assert rows_of(TargetingModel.at(table_of(rows), 4, SMALL).priors) == []
    model = TargetingModel.at(table_of(rows), 5, SMALL)
    assert rows_of(model.priors) == [(5, 4, 2, 0.0)]
    # rates 1 and 0, half of all: (1 - 0) / sqrt(1/4 * (1/2 + 1/2)) = 2
    # the keyword is with 2 of 2 clicks and 0 of 2 others: log((3 / 4) / (1 / 4))
    assert rows_of(model.kept) == [(5, 7, 2, 2, 2, 0, pytest.approx(2.0), pytest.approx(log(3)))]
    # who searched twice has the keyword once
    assert rows_of(model.score([9, 3])) == [
        (9, 5, pytest.approx(log(3)), pytest.approx(3 / 4)),
        (3, 5, 0.0, 0.5),
    ]


def test_oracle_planted_keywords_stand_out() -> None:
    stream = AdEvents(users=3_000, ads=6, keywords=60)
    end = stream.begin + 24 * HOUR
    model = TargetingModel.at(stream.between(stream.begin, end), end)
    planted = {
        (ad, int(keyword)) for ad, row in enumerate(stream.keywords_of_ads(), 1) for keyword in row
    }
    z = {(row[0], row[1]): row[6] for row in rows_of(model.keywords)}
    others = [value for pair, value in z.items() if pair not in planted]
    assert np.mean([z[pair] for pair in planted]) > 4
    assert abs(np.mean(others)) < 1
    weights = {(row[0], row[1]): row[7] for row in rows_of(model.kept)}
    assert sum(weights.get(pair, 0.0) > 0 for pair in planted) > 0.7 * len(planted)
    bots = set(bot_lifetimes(stream.between(stream.begin, end), model.rules)["user"].to_pylist())
    assert set(stream.bot_users().tolist()) <= bots
    assert len(bots) <= 2


def test_priors_are_smoothed() -> None:
    rows = [(0, IMPRESSION, 1, 5), (0, IMPRESSION, 2, 5)]
    found = priors(examples(table_of(rows), SMALL), SMALL)
    assert rows_of(found) == [(5, 2, 0, pytest.approx(log(1 / 3)))]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "window must be > 0"),
        ({"memory": -1}, "memory must be > 0"),
        ({"smoothing": 0.0}, "smoothing must be > 0"),
        ({"most_clicks": -1}, "must not be negative"),
    ],
)
def test_rules_without_meaning_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        Rules(**arguments)
