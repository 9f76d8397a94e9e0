"""Behavioural targeting over all events at once: from raw events to click probabilities, in steps.

Idea: five steps, each a function from Arrow tables to an Arrow table that can be inspected.

    1. `without_bots`     drops events of users while they are bots (see `bot_lifetimes`)
    2. `behaviour`        counts the keywords of a user over the last hours, at given times
    3. `examples`         labels each impression by whether its user clicked the ad soon after
    4. `keyword_scores`   compares, for each ad, examples with a keyword and without; `kept`
    5. `TargetingModel.score`      adds up the weights of a user's selected keywords for each ad

Lifetimes: an event at `le` is alive at t where le <= t < le + window, so events alive at t came in
(t - window, t], ties at t included, in whatever order they arrived. All counts over the last hours
are counts of live events. An impression at t is clicked if the same user clicks the same ad in
[t, t + click_within); one click may count for several impressions. An example is known, and alive,
from t + click_within on, whatever its label, and for `memory`. Bots are judged by raw events, their
including removed ones; all later steps see only the remaining events.

Invariants:
1. Every step follows its definition literally (`test_oracle_bots_are_their_definition`,
   `test_oracle_examples_are_their_definition`, `test_oracle_behaviour_is_its_definition`,
   `test_oracle_keyword_scores_are_their_definition`, `test_oracle_scores_are_their_definition`).
2. An event is dropped exactly if its user is a bot at that time
   (`test_oracle_bots_are_their_definition`).
3. Events after t do not change the model at t (`test_the_future_does_not_show`).

Cost: sorting, and one row for each impression and each search of its user in the hours before.

References: ICE, section III-B; B. Chandramouli, J. Goldstein and S. Duan, Temporal analytics on big
data for web advertising, ICDE 2012. The z score is the pooled one of two proportions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from examples.advertising.generator import CLICK, IMPRESSION, SEARCH
from icestream.core.arrays import Ints, numbers_of
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros

_TIME = pa.timestamp("us", tz="UTC")
_MINUTE: Micros = 60_000_000


@dataclass(frozen=True, slots=True)
class Rules:
    """The parameters of the steps."""

    #: how long clicks and searches count
    window: Micros = 6 * 60 * _MINUTE
    #: more than this many clicks, or that many searches, in the window make a bot
    most_clicks: int = 50
    most_searches: int = 100
    click_within: Micros = 5 * _MINUTE
    #: how long an example counts; None means for ever
    memory: Micros | None = None
    #: a keyword is selected for an ad if |z| is above this and at least this many examples have it
    threshold: float = 1.96
    least_examples: int = 5
    #: pseudo-examples added to each side of a rate (smoothing)
    smoothing: float = 1.0

    def __post_init__(self) -> None:
        """Raise for invalid values."""
        for name in ("window", "click_within", "memory", "smoothing"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                msg = f"{name} must be > 0; got {value}"
                raise DefinitionError(msg)
        if min(self.most_clicks, self.most_searches, self.threshold) < 0:
            msg = (
                "most_clicks, most_searches and threshold must not be negative; "
                f"got {self.most_clicks}, {self.most_searches}, {self.threshold}"
            )
            raise DefinitionError(msg)


def bot_lifetimes(events: pa.Table, rules: Rules) -> pa.Table:
    """Return when users are bots: columns `user`, `le`, `re`, as few lifetimes as possible."""
    acts = events.filter(pc.not_equal(events.column("stream"), IMPRESSION))
    user, time = _ints(acts, "user"), _ints(acts, "time")
    # the state of a user can change only when an event starts or stops counting
    user, time = _distinct(np.tile(user, 2), np.append(time, time + rules.window))
    bot = _is_bot(events, user, time, rules)
    change = np.flatnonzero(np.append(bot[:1], bot[1:] != bot[:-1]))
    # no user is a bot at the last of these times, so changes come in pairs of one user
    le, re = change[0::2], change[1::2]
    return pa.table(
        {"user": user[le], "le": pa.array(time[le], _TIME), "re": pa.array(time[re], _TIME)}
    )


def without_bots(events: pa.Table, rules: Rules) -> pa.Table:
    """Drop the events of users who are bots at that time; the others stay in order."""
    bot = _is_bot(events, _ints(events, "user"), _ints(events, "time"), rules)
    return events.filter(pa.array(~bot))


def behaviour(events: pa.Table, at: pa.Table, rules: Rules) -> pa.Table:
    """Count the keywords of users at given times.

    Args:
        events: events without bots.
        at: columns `time` and `user`, a row for each vector requested.
        rules: only the window is used.

    Returns:
        Columns `row` (of `at`), `keyword`, `count`, in this order; absent keywords have no row.
    """
    searches = _of_stream(events, SEARCH)
    order = np.lexsort((_ints(searches, "time"), _ints(searches, "user")))
    user, time = _ints(searches, "user")[order], _ints(searches, "time")[order]
    keyword = _ints(searches, "subject")[order]
    at_user, at_time = _ints(at, "user"), _ints(at, "time")
    end = _count_up_to((user, time), (at_user, at_time))
    begin = _count_up_to((user, time), (at_user, at_time - rules.window))
    row = np.repeat(np.arange(at.num_rows), end - begin)
    found = keyword[numbers_of(begin, end)]
    table = pa.table({"row": row, "keyword": found})
    counted = table.group_by(["row", "keyword"]).aggregate([([], "count_all")])
    return counted.rename_columns(["row", "keyword", "count"]).sort_by(
        [("row", "ascending"), ("keyword", "ascending")]
    )


def examples(events: pa.Table, rules: Rules) -> pa.Table:
    """Label impressions.

    Args:
        events: events without bots.
        rules: only the time to click is used.

    Returns:
        Columns `time`, `user`, `ad`, `label`, `known`, ordered by the first three.
    """
    shown, clicks = _of_stream(events, IMPRESSION), _of_stream(events, CLICK)
    user, ad, time = (_ints(shown, name) for name in ("user", "subject", "time"))
    clicked = tuple(_ints(clicks, name) for name in ("user", "subject", "time"))
    answers = _count_up_to(clicked, (user, ad, time + rules.click_within - 1))
    answers -= _count_up_to(clicked, (user, ad, time - 1))
    order = np.lexsort((ad, user, time))
    return pa.table(
        {
            "time": pa.array(time[order], _TIME),
            "user": user[order],
            "ad": ad[order],
            "label": (answers > 0)[order].astype(np.int64),
            "known": pa.array(time[order] + rules.click_within, _TIME),
        }
    )


def known_at(labelled: pa.Table, t: Micros, rules: Rules) -> pa.Table:
    """Return the examples that are alive at `t`."""
    known = _ints(labelled, "known")
    alive = known <= t
    if rules.memory is not None:
        alive &= known > t - rules.memory
    return labelled.filter(pa.array(alive))


def priors(labelled: pa.Table, rules: Rules) -> pa.Table:
    """Return columns `ad`, `examples`, `clicks`, `log_odds` of all examples of each ad."""
    ad, place = np.unique(_ints(labelled, "ad"), return_inverse=True)
    count = np.bincount(place, minlength=len(ad))
    clicks = np.bincount(place, _ints(labelled, "label"), len(ad)).astype(np.int64)
    odds = (clicks + rules.smoothing) / (count - clicks + rules.smoothing)
    return pa.table({"ad": ad, "examples": count, "clicks": clicks, "log_odds": np.log(odds)})


def keyword_scores(labelled: pa.Table, vectors: pa.Table, rules: Rules) -> pa.Table:
    """Compute for each ad and keyword whether examples with it are clicked more often.

    Args:
        labelled: examples.
        vectors: `behaviour` at these examples.
        rules: only the smoothing is used.

    Returns:
        Columns `ad`, `keyword`, `examples_with`, `clicks_with`, `examples_without`,
        `clicks_without`, `z`, `weight`, ordered by the first two; pairs that no example has are
        left out. `z` is 0 if all examples of the ad have the same label, or all have the keyword.
        `weight` is added to the log odds: the logarithm of the keyword's smoothed rate among
        clicked examples over that among the others.
    """
    row = _ints(vectors, "row")
    ad, keyword = _ints(labelled, "ad")[row], _ints(vectors, "keyword")
    pair_ad, pair_keyword = _distinct(ad, keyword)
    place = _count_up_to((pair_ad, pair_keyword), (ad, keyword)) - 1
    n1 = np.bincount(place, minlength=len(pair_ad))
    c1 = np.bincount(place, _ints(labelled, "label")[row], len(pair_ad)).astype(np.int64)
    totals = priors(labelled, rules)
    of_ad = np.searchsorted(_ints(totals, "ad"), pair_ad)
    n, c = _ints(totals, "examples")[of_ad], _ints(totals, "clicks")[of_ad]
    n2, c2 = n - n1, c - c1
    defined = (n2 > 0) & (c > 0) & (c < n)
    rate = c / n
    spread = np.sqrt(rate * (1 - rate) * (1 / n1 + 1 / np.maximum(n2, 1)))
    difference = c1 / n1 - c2 / np.maximum(n2, 1)
    s = rules.smoothing
    return pa.table(
        {
            "ad": pair_ad,
            "keyword": pair_keyword,
            "examples_with": n1,
            "clicks_with": c1,
            "examples_without": n2,
            "clicks_without": c2,
            "z": np.where(defined, difference / np.where(defined, spread, 1.0), 0.0),
            "weight": np.log((c1 + s) / (c + 2 * s)) - np.log((n1 - c1 + s) / (n - c + 2 * s)),
        }
    )


def kept(scores: pa.Table, rules: Rules) -> pa.Table:
    """Select the keywords that are significant for an ad."""
    telling = np.abs(scores.column("z").to_numpy()) > rules.threshold
    telling &= _ints(scores, "examples_with") >= rules.least_examples
    return scores.filter(pa.array(telling))


@dataclass(frozen=True, slots=True)
class TargetingModel:
    """The model at one time, with all steps that led to it."""

    t: Micros
    rules: Rules
    #: events up to that time, without bots
    events: pa.Table
    examples: pa.Table
    #: behaviour at the examples
    vectors: pa.Table
    priors: pa.Table
    #: scores of all keywords, and of those selected
    keywords: pa.Table
    kept: pa.Table

    @staticmethod
    def at(events: pa.Table, t: Micros, rules: Rules | None = None) -> TargetingModel:
        """Run all steps over raw events, in any order, up to time `t`."""
        rules = rules or Rules()
        past = events.filter(pa.array(_ints(events, "time") <= t))
        clean = without_bots(past, rules)
        labelled = known_at(examples(clean, rules), t, rules)
        vectors = behaviour(clean, labelled, rules)
        scores = keyword_scores(labelled, vectors, rules)
        return TargetingModel(
            t=t,
            rules=rules,
            events=clean,
            examples=labelled,
            vectors=vectors,
            priors=priors(labelled, rules),
            keywords=scores,
            kept=kept(scores, rules),
        )

    def score(self, users: Sequence[int]) -> pa.Table:
        """Return `user`, `ad`, `log_odds`, `probability` of a click, for all ads with examples.

        Rows are in the order of `users`, and then of ads.
        """
        at = pa.table({"time": np.full(len(users), self.t), "user": pa.array(users, pa.int64())})
        now = behaviour(self.events, at, self.rules)
        ads = _ints(self.priors, "ad")
        log_odds = np.tile(self.priors.column("log_odds").to_numpy(), (len(users), 1))
        # all selected keywords of all ads, for each keyword of a user
        by_keyword = self.kept.sort_by([("keyword", "ascending"), ("ad", "ascending")])
        keywords, wanted = _ints(by_keyword, "keyword"), _ints(now, "keyword")
        begin, end = (np.searchsorted(keywords, wanted, side=side) for side in ("left", "right"))
        chosen = numbers_of(begin, end)
        row = np.repeat(_ints(now, "row"), end - begin)
        column = np.searchsorted(ads, _ints(by_keyword, "ad")[chosen])
        np.add.at(log_odds, (row, column), by_keyword.column("weight").to_numpy()[chosen])
        flat = log_odds.ravel()
        return pa.table(
            {
                "user": np.repeat(np.asarray(users, dtype=np.int64), len(ads)),
                "ad": np.tile(ads, len(users)),
                "log_odds": flat,
                "probability": 1 / (1 + np.exp(-flat)),
            }
        )


def _ints(table: pa.Table, name: str) -> Ints:
    """Return a column of integers or of times as an array."""
    found: Ints = table.column(name).cast(pa.int64()).to_numpy()
    return found


def _of_stream(events: pa.Table, stream: int) -> pa.Table:
    return events.filter(pc.equal(events.column("stream"), stream))


def _is_bot(events: pa.Table, user: Ints, time: Ints, rules: Rules) -> npt.NDArray[np.bool_]:
    """Return whether users are bots at given times."""
    bot = np.zeros(len(user), dtype=bool)
    for stream, most in ((CLICK, rules.most_clicks), (SEARCH, rules.most_searches)):
        acts = _of_stream(events, stream)
        past = (_ints(acts, "user"), _ints(acts, "time"))
        alive = _count_up_to(past, (user, time)) - _count_up_to(past, (user, time - rules.window))
        bot |= alive > most
    return bot


def _distinct(one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Return the distinct pairs, sorted."""
    order = np.lexsort((other, one))
    one, other = one[order], other[order]
    fresh = np.ones(len(one), dtype=bool)
    fresh[1:] = (one[1:] != one[:-1]) | (other[1:] != other[:-1])
    return one[fresh], other[fresh]


def _count_up_to(rows: tuple[Ints, ...], bounds: tuple[Ints, ...]) -> Ints:
    """Count, for each bound, the rows that are not above it.

    Both are columns, compared from the first on. So the difference of two counts whose bounds
    differ in the last column only is that of the rows in between.
    """
    size = len(rows[0])
    columns = [np.append(row, bound) for row, bound in zip(rows, bounds, strict=True)]
    is_bound = np.arange(len(columns[0])) >= size
    order = np.lexsort((is_bound, *reversed(columns)))
    counts = np.empty(len(order), dtype=np.int64)
    counts[order] = np.cumsum(~is_bound[order])
    return counts[size:]
