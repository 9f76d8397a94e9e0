"""Behavioural targeting as queries: from raw events to click probabilities, step by step.

Idea: four groupings, one after the other. By *user*: bots are recognised by their actions in the
    last
hours and their events dropped; the rest becomes the user's behaviour at impressions, which clicks
label. By *ad*: examples with and without a keyword are compared. By *keyword*: the weights of ads
are joined with the users to score. By *result*: weights add up to log odds.

    user      raw - bots            -> impressions, clicks, searches of people
              impressions x counts  -> user, ad, at, keyword, count      keyword by keyword
              clicked or not        -> the same with a label, once it is known
    ad        keyword: examples and clicks; z, weight                    keyword by keyword
    keyword   asked x model weights  -> user, at, ad, weight
    answer    sum of weights        -> log odds, probability

Every user has the keyword `BIAS`: its examples are all examples of an ad, its weight is the prior.

Invariants:
1. Every step agrees with the offline model, at every time and for any batches
   (`test_oracle_bots`, `test_oracle_events_without_bots`, `test_oracle_behaviour`,
   `test_oracle_examples`, `test_oracle_keyword_scores`, `test_oracle_scores`).
2. With `refresh` the model is constant between two of its multiples
   (`test_oracle_a_model_that_is_refreshed_is_that_of_the_last_refresh`).
3. Two requests of a user at one time have one result (`test_oracle_scores`).
4. The combined stream contains the results of the steps
   (`test_oracle_what_is_told_is_what_the_steps_tell`).

Cost: an action of a user with n live ones revises up to n future counts, once for each batch. An
example revises all keywords of its ad, at the times from which it counts: without `refresh` these
are as many as examples, with it one for each refresh.

Limits: keywords and ads are numbers from 1 on.

References: ICE, section III-B; B. Chandramouli, J. Goldstein and S. Duan, Temporal analytics on big
data for web advertising, ICDE 2012.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import icestream as ice
from examples.advertising.generator import CLICK, IMPRESSION, SEARCH
from examples.advertising.offline import Rules
from icestream.api.events import Events
from icestream.core.times import Micros

#: the keyword that every user has
BIAS = 0
#: the ad of request rows, which are for all ads, and their label
ANY_AD = 0
ASKED = -1
#: kinds of result rows, and their columns
BOT, WEIGHT, SCORE = range(3)
TOLD = ("kind", "user", "ad", "keyword", "z", "value")


@dataclass(frozen=True)
class Targeting:
    """The steps over one stream; a query may write any of them.

    `requests` are the users to score: columns `user` and `at`, each alive at the time `at`.
    """

    events: Events
    rules: Rules
    requests: Events
    #: the model changes at multiples of this, to that of just before; None: with every example
    refresh: Micros | None = None

    @cached_property
    def bots(self) -> Events:
        """Return users while they are bots: `user`."""
        return self.events.groupApply("user", self._bots)

    @cached_property
    def clean(self) -> Events:
        """Drop events of users while they are bots; columns stay."""
        return self.events.groupApply("user", self._without_bots)

    @cached_property
    def behaviour(self) -> Events:
        """Count keywords at impressions: `user`, `ad`, `at`, `keyword`, `count`."""
        return self.events.groupApply("user", self._behaviour)

    @cached_property
    def examples(self) -> Events:
        """Label behaviour: `ad`, `keyword`, `label`, for as long as an example counts."""
        known = self._rows.where(f"ad <> {ANY_AD}").select("ad", "keyword", "label")
        counting = known.alterLifetime(self.rules.memory)
        return counting if self.refresh is None else counting.window(1, slide=self.refresh)

    @cached_property
    def keyword_scores(self) -> Events:
        """Compare examples: `ad`, `keyword`, counts with it and of all, `z`, `weight`."""
        return self.examples.groupApply("ad", self._of_ad)

    @cached_property
    def model(self) -> Events:
        """Select an ad's significant keywords, and its prior: `ad`, `keyword`, `z`, `weight`."""
        telling = f"abs(z) > {self.rules.threshold}D AND examples >= {self.rules.least_examples}"
        chosen = self.keyword_scores.where(f"keyword = {BIAS} OR ({telling})")
        return chosen.select("ad", "keyword", "z", "weight")

    @cached_property
    def scores(self) -> Events:
        """Return scores for requests: `user`, `at`, `ad`, `log_odds`, `probability`."""
        asked = self._rows.where(f"ad = {ANY_AD}").select("user", "at", "keyword")
        weighed = asked.join(self.model, on="keyword")
        sums = weighed.groupApply(
            ("user", "at", "ad"), lambda answer: answer.agg(ice.sum("weight").alias("log_odds"))
        )
        return sums.withColumn("probability", "1 / (1 + exp(-log_odds))")

    @cached_property
    def told(self) -> Events:
        """Return bots, weights and probabilities in one stream: `kind` and the columns of `TOLD`.

        Common steps are computed once, which three separate queries could not do.
        """
        bots = self.bots.select(
            f"{BOT} AS kind", "user", "0L AS ad", "0L AS keyword", "0D AS z", "1D AS value"
        )
        weights = self.model.select(
            f"{WEIGHT} AS kind", "0L AS user", "ad", "keyword", "z", "weight AS value"
        )
        answers = self.scores.select(
            f"{SCORE} AS kind", "user", "ad", "0L AS keyword", "0D AS z", "probability AS value"
        )
        return bots.union(weights).union(answers)

    @cached_property
    def _rows(self) -> Events:
        """Return examples, and the behaviour of users to score, of all users."""
        return self.events.groupApply("user", self._of_user, self.requests)

    # -- by user ---------------------------------------------------------------------------

    def _of_user(self, raw: Events, requests: Events) -> Events:
        clean = self._without_bots(raw)
        instants = _shown(clean).union(_asked(requests))
        vectors = self._with_keywords(instants, clean)
        asked = vectors.where(f"ad = {ANY_AD}").withColumn("label", f"{ASKED}")
        return self._labelled(vectors.where(f"ad <> {ANY_AD}"), clean).union(asked)

    def _bots(self, raw: Events) -> Events:
        """Count the actions by which bots are recognised."""
        acts = raw.where(f"stream <> {IMPRESSION}").last(self.rules.window)
        counts = acts.agg(
            ice.sum(f"if(stream = {CLICK}, 1, 0)").alias("clicks"),
            ice.sum(f"if(stream = {SEARCH}, 1, 0)").alias("searches"),
        )
        most = f"clicks > {self.rules.most_clicks} OR searches > {self.rules.most_searches}"
        too_often = counts.where(most).select("user")
        # counting once more gives the longest possible lifetimes, however the first counts changed
        return too_often.agg(ice.count().alias("reasons")).select("user")

    def _without_bots(self, raw: Events) -> Events:
        return raw.difference(self._bots(raw))

    def _behaviour(self, raw: Events) -> Events:
        clean = self._without_bots(raw)
        return self._with_keywords(_shown(clean), clean)

    def _with_keywords(self, instants: Events, clean: Events) -> Events:
        """Pair times with the keywords that a user has then, and with the bias."""
        searches = clean.where(f"stream = {SEARCH}").select("subject AS keyword")
        counts = searches.last(self.rules.window).groupApply(
            "keyword", lambda keyword: keyword.agg(ice.count().alias("count"))
        )
        bias = instants.withColumn("keyword", f"{BIAS}L").withColumn("count", "1L")
        return instants.join(counts).union(bias)

    def _labelled(self, vectors: Events, clean: Events) -> Events:
        """Check for a click at the last instant; the label is known at the next."""
        within = self.rules.click_within
        clicks = clean.where(f"stream = {CLICK}").select("subject AS ad").last(within)
        return vectors.shift(within - 1).groupApply("ad", _clicked_or_not, clicks).shift(1)

    # -- by ad -----------------------------------------------------------------------------

    def _of_ad(self, examples: Events) -> Events:
        counts = examples.groupApply(
            "keyword",
            lambda keyword: keyword.agg(
                ice.count().alias("examples"), ice.sum("label").alias("clicks")
            ),
        )
        everything = counts.where(f"keyword = {BIAS}").select(
            "examples AS all_examples", "clicks AS all_clicks"
        )
        names = ("keyword", "examples", "clicks", "all_examples", "all_clicks")
        return counts.join(everything).select(*names, f"{_Z} AS z", f"{self._weight} AS weight")

    @property
    def _weight(self) -> str:
        """Return the smoothed weight of a keyword in the log odds; for the bias, the prior."""
        s = f"{self.rules.smoothing}D"
        others, all_others = "(examples - clicks)", "(all_examples - all_clicks)"
        prior = f"log((clicks + {s}) / ({others} + {s}))"
        clicked = f"log((clicks + {s}) / (all_clicks + 2 * {s}))"
        not_clicked = f"log(({others} + {s}) / ({all_others} + 2 * {s}))"
        return f"if(keyword = {BIAS}, {prior}, {clicked} - {not_clicked})"


#: difference of the click rates with and without a keyword, in standard deviations
_DIFFERENCE = "clicks / examples - (all_clicks - clicks) / (all_examples - examples)"
_RATE = "all_clicks / all_examples"
_SPREAD = f"{_RATE} * (1 - {_RATE}) * (1 / examples + 1 / (all_examples - examples))"
_Z = (
    "CASE WHEN examples < all_examples AND all_clicks > 0 AND all_clicks < all_examples "
    f"THEN ({_DIFFERENCE}) / sqrt({_SPREAD}) ELSE 0D END"
)


def _shown(clean: Events) -> Events:
    """Return the ads shown to a user: `user`, `ad`, `at`."""
    return clean.where(f"stream = {IMPRESSION}").select("subject AS ad", "time AS at")


def _asked(requests: Events) -> Events:
    """Return the requests of a user, in the same columns, without duplicates."""
    once = requests.groupApply("at", lambda same: same.agg(ice.count().alias("times")))
    return once.select(f"{ANY_AD}L AS ad", "at")


def _clicked_or_not(shown: Events, clicks: Events) -> Events:
    """Label impressions by whether a click is alive; several clicks count as one."""
    clicked = shown.join(clicks.agg(ice.count().alias("clicks")))
    names = [name for name in clicked.columns if name != "clicks"]
    return clicked.select(*names, "1 AS label").union(
        shown.difference(clicks).select(*names, "0 AS label")
    )


__all__ = ["BIAS", "BOT", "SCORE", "TOLD", "WEIGHT", "Targeting"]
