"""Adds up the results of a targeting query, and compares them with the offline model.

Idea: results are changes to rows with lifetimes. They are added up as they come, so the totals give
the result at every time so far: who is a bot, which keywords predict clicks on which ad, who was
scored. The offline model is computed for some times over all events, and must agree.

Invariants:
1. Changes add up to what is valid at a time (`test_oracle_changes_add_up`).
2. A missing bot, a wrong weight and a missing score are reported
   (`test_what_is_wrong_is_reported`).

Cost: rows that do not cancel out are held in memory, and grouped again with each file of results;
the check makes an offline model for each refresh that it checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import isclose
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from examples.advertising.offline import Rules, TargetingModel, bot_lifetimes, without_bots
from examples.advertising.query import BIAS, BOT, SCORE, TOLD, WEIGHT
from icestream.core.times import INFINITY, Micros
from icestream.demo.results import micros_of

_CLOSE = 1e-9
_COLUMNS = [*TOLD, "start", "end"]


class Weight(NamedTuple):
    """The evidence of a keyword for an ad: its z score, and what it adds to the log odds."""

    z: float
    weight: float


#: by ad and keyword
Weights = dict[tuple[int, int], Weight]
#: by ad
Scores = dict[int, float]


class AnswerTotals:
    """The totals of a query's rows."""

    def __init__(self) -> None:
        """Start empty."""
        self._rows: pa.Table | None = None

    def take(self, rows: pa.Table) -> None:
        """Add rows with lifetimes and changes."""
        lifetime = rows.column("lifetime").combine_chunks()
        new = rows.select([*TOLD, "change"])
        new = new.append_column("start", micros_of(lifetime.field("start")))
        new = new.append_column("end", pc.fill_null(micros_of(lifetime.field("end")), INFINITY))
        everything = new if self._rows is None else pa.concat_tables([self._rows, new])
        summed = everything.group_by(_COLUMNS).aggregate([("change", "sum")])
        summed = summed.rename_columns([*_COLUMNS, "change"])
        summed = summed.filter(pc.not_equal(summed.column("change"), 0))
        self._rows = summed.select(new.column_names).cast(new.schema)

    def bots(self, instant: Micros) -> set[int]:
        """Return the users that are bots at a time."""
        return {user for user, *_ in self._alive(BOT, instant)}

    def weights(self, instant: Micros) -> Weights:
        """Return the model at a time."""
        return {
            (ad, keyword): Weight(z, value)
            for _, ad, keyword, z, value in self._alive(WEIGHT, instant)
        }

    def scores(self, user: int, instant: Micros) -> Scores:
        """Return the probabilities of a user with a request at a time."""
        return {ad: value for who, ad, *_, value in self._alive(SCORE, instant) if who == user}

    def requests(self) -> list[tuple[Micros, int]]:
        """Return times and users of requests, in the order of time."""
        rows = self._of(SCORE)
        pairs = zip(rows["start"].to_pylist(), rows["user"].to_pylist(), strict=True)
        return sorted(set(pairs))

    def _of(self, kind: int) -> pa.Table:
        if self._rows is None:
            return pa.table({name: [] for name in _COLUMNS})
        return self._rows.filter(pc.equal(self._rows.column("kind"), kind))

    def _alive(self, kind: int, instant: Micros) -> Iterator[tuple[Any, ...]]:
        rows = self._of(kind)
        if rows.num_rows:
            begun = pc.less_equal(rows.column("start"), instant)
            rows = rows.filter(pc.and_(begun, pc.greater(rows.column("end"), instant)))
        names = ("user", "ad", "keyword", "z", "value")
        return zip(*(rows.column(name).to_pylist() for name in names), strict=True)


@dataclass(frozen=True, slots=True)
class AdVerdict:
    """The verdict of the offline model."""

    #: times at which bots and model were compared, and answers to requests
    instants: int
    answers: int
    #: weights and probabilities that were compared
    numbers: int
    wrong: tuple[str, ...]


def checked(
    told: AnswerTotals, events: pa.Table, rules: Rules, refresh: Micros, *, most: int = 20
) -> AdVerdict:
    """Compare results with the model of all events, at some times and for some users.

    Args:
        told: results of a query over the events, with a model that is refreshed.
        events: all events of the stream, in the order of time.
        rules: rules of the query.
        refresh: refresh period of the query.
        most: maximum number of times, and of requests, to check.
    """
    times = events.column("time").cast(pa.int64())
    first, last = (pc.min_max(times)[name].as_py() for name in ("min", "max"))
    clean = without_bots(events, rules)

    @cache
    def model(instant: Micros) -> TargetingModel:
        return TargetingModel.at(events, instant - instant % refresh - 1, rules)

    found: list[str] = []
    numbers = 0
    instants = sorted({int(t) for t in np.linspace(first, last, most)})
    for instant in instants:
        weights, wanted = told.weights(instant), weights_of(model(instant))
        numbers += len(weights)
        found += _wrong_bots(told.bots(instant), _bots_at(events, instant, rules), instant)
        found += _wrong_numbers(_flat(weights), _flat(wanted), f"model at {instant}")
    requests = told.requests()
    for place in np.unique(np.linspace(0, len(requests) - 1, min(most, len(requests)), dtype=int)):
        asked, user = requests[place]
        now = replace(model(asked), t=asked, events=clean)
        scores = told.scores(user, asked)
        numbers += len(scores)
        answer = now.score([user])
        ads, chances = (answer[name].to_pylist() for name in ("ad", "probability"))
        likely = dict(zip(ads, chances, strict=True))
        found += _wrong_numbers(scores, likely, f"probability of user {user} at {asked}")
    return AdVerdict(len(instants), min(most, len(requests)), numbers, tuple(found))


def weights_of(model: TargetingModel) -> Weights:
    """Return the selected weights and the priors of an offline model, as the query has them."""
    names = ("ad", "keyword", "z", "weight")
    kept = zip(*(model.kept.column(name).to_pylist() for name in names), strict=True)
    found = {(ad, keyword): Weight(z, weight) for ad, keyword, z, weight in kept}
    priors = (model.priors.column(name).to_pylist() for name in ("ad", "log_odds"))
    return found | {(ad, BIAS): Weight(0.0, value) for ad, value in zip(*priors, strict=True)}


def _flat(weights: Weights) -> dict[tuple[int, int, str], float]:
    """Return the numbers of a model one by one."""
    return {
        (*key, name): value
        for key, each in weights.items()
        for name, value in each._asdict().items()
    }


def _bots_at(events: pa.Table, instant: Micros, rules: Rules) -> set[int]:
    lifetimes = bot_lifetimes(events, rules)
    le, re = (lifetimes.column(name).cast(pa.int64()) for name in ("le", "re"))
    alive = pc.and_(pc.less_equal(le, instant), pc.greater(re, instant))
    return set(lifetimes.filter(alive).column("user").to_pylist())


def _wrong_bots(found: set[int], wanted: set[int], instant: Micros) -> list[str]:
    return [
        f"at {instant} user {user} is {'a' if user in wanted else 'no'} bot"
        for user in sorted(found ^ wanted)
    ]


def _wrong_numbers(found: Mapping[Any, float], wanted: Mapping[Any, float], name: str) -> list[str]:
    """Describe what is missing, superfluous or different."""
    return [
        f"{name}, {key}: {found.get(key)} instead of {wanted.get(key)}"
        for key in sorted({*found, *wanted})
        if key not in found
        or key not in wanted
        or not isclose(found[key], wanted[key], rel_tol=_CLOSE, abs_tol=_CLOSE)
    ]
