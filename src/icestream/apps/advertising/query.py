"""Behavioural targeting as queries: from raw events to click probabilities, each step its own.

Idea: four groupings, one after the other. Of each *user*, bots are told by what was done in the
last hours and their events dropped; what is left becomes the user's behaviour at impressions, which
clicks label. Of each *ad*, examples with and without a keyword are compared. Of each *keyword*, the
weights of ads meet those who ask; of each *answer*, weights add up to log odds.

    user      raw - bots            -> impressions, clicks, searches of people
              impressions x counts  -> user, ad, at, keyword, count      keyword by keyword
              clicked or not        -> the same with a label, once it is known
    ad        keyword: examples and clicks; z, weight                    keyword by keyword
    keyword   asked x kept weights  -> user, at, ad, weight
    answer    sum of weights        -> log odds, probability

Everybody has the keyword `BIAS`: its examples are all examples of an ad, its weight is the prior.

Invariants:
1. Every step is that of the offline model, at every instant and whatever the batches
   (`test_oracle_bots`, `test_oracle_events_without_bots`, `test_oracle_behaviour`,
   `test_oracle_examples`, `test_oracle_keyword_scores`, `test_oracle_scores`).
2. With `refresh` the model is, between two of its multiples, that of the first
   (`test_oracle_a_model_that_is_refreshed_is_that_of_the_last_refresh`).
3. Who asks twice at an instant is answered once (`test_oracle_scores`).

Cost: an act of a user with n alive ones revises up to n counts of the future, once for each batch.
An example revises all keywords of its ad, at the instants from when on it counts: without `refresh`
those are as many as examples, with it one for each refresh.

Limits: keywords and ads are numbers from 1 on.

References: ICE, section III-B; B. Chandramouli, J. Goldstein and S. Duan, Temporal analytics on big
data for web advertising, ICDE 2012.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import icestream as ice
from icestream.api.events import Events
from icestream.apps.advertising.generator import CLICK, IMPRESSION, SEARCH
from icestream.apps.advertising.offline import Rules
from icestream.core.times import Micros

#: the keyword that everybody has
BIAS = 0
#: label of rows that ask for a score
ASKED = -1


@dataclass(frozen=True)
class Targeting:
    """The steps over one stream; a query may write any of them.

    `requests` say who is to be scored: columns `user` and `at`, each alive at the instant `at`.
    """

    events: Events
    rules: Rules
    requests: Events
    #: the model changes at multiples of this, or with every example if None
    refresh: Micros | None = None

    @cached_property
    def bots(self) -> Events:
        """Tell who is a bot, while they are: `user`."""
        return self.events.groupApply("user", self._bots)

    @cached_property
    def clean(self) -> Events:
        """Drop what users do while they are bots; columns stay."""
        return self.events.groupApply("user", self._without_bots)

    @cached_property
    def behaviour(self) -> Events:
        """Count keywords at impressions: `user`, `ad`, `at`, `keyword`, `count`."""
        return self.events.groupApply("user", lambda raw: self._shown(self._without_bots(raw)))

    @cached_property
    def examples(self) -> Events:
        """Label behaviour: `ad`, `keyword`, `label`, for as long as an example counts."""
        known = self._rows.where(f"label <> {ASKED}").select("ad", "keyword", "label")
        counting = known.alterLifetime(self.rules.memory)
        return counting if self.refresh is None else counting.window(1, slide=self.refresh)

    @cached_property
    def keyword_scores(self) -> Events:
        """Compare examples: `ad`, `keyword`, counts with it and of all, `z`, `weight`."""
        return self.examples.groupApply("ad", self._of_ad)

    @cached_property
    def model(self) -> Events:
        """Keep what tells something about an ad, and its prior: `ad`, `keyword`, `weight`."""
        telling = f"abs(z) > {self.rules.threshold}D AND examples >= {self.rules.least_examples}"
        chosen = self.keyword_scores.where(f"keyword = {BIAS} OR ({telling})")
        return chosen.select("ad", "keyword", "weight")

    @cached_property
    def scores(self) -> Events:
        """Answer requests: `user`, `at`, `ad`, `log_odds`, `probability`."""
        asked = self._rows.where(f"label = {ASKED}").select("user", "at", "keyword")
        weighed = asked.join(self.model, on="keyword")
        sums = weighed.groupApply(
            ("user", "at", "ad"), lambda answer: answer.agg(ice.sum("weight").alias("log_odds"))
        )
        return sums.withColumn("probability", "1 / (1 + exp(-log_odds))")

    @cached_property
    def _rows(self) -> Events:
        """Give examples, and what those who ask have done, of all users."""
        return self.events.groupApply("user", self._of_user, self.requests)

    # -- of a user -------------------------------------------------------------------------

    def _of_user(self, raw: Events, requests: Events) -> Events:
        clean = self._without_bots(raw)
        return self._labelled(clean).union(self._asked(clean, requests))

    def _bots(self, raw: Events) -> Events:
        """Count what a user does that bots do too often."""
        acts = raw.where(f"stream <> {IMPRESSION}").window(self.rules.window)
        counts = acts.agg(
            ice.sum(f"if(stream = {CLICK}, 1, 0)").alias("clicks"),
            ice.sum(f"if(stream = {SEARCH}, 1, 0)").alias("searches"),
        )
        most = f"clicks > {self.rules.most_clicks} OR searches > {self.rules.most_searches}"
        return counts.where(most).select("user")

    def _without_bots(self, raw: Events) -> Events:
        return raw.difference(self._bots(raw))

    def _with_keywords(self, instants: Events, clean: Events) -> Events:
        """Pair instants with the keywords that a user has then, and with the bias."""
        searches = clean.where(f"stream = {SEARCH}").select("subject AS keyword")
        counts = searches.window(self.rules.window).groupApply(
            "keyword", lambda keyword: keyword.agg(ice.count().alias("count"))
        )
        bias = instants.withColumn("keyword", f"{BIAS}L").withColumn("count", "1L")
        return instants.join(counts).union(bias)

    def _shown(self, clean: Events) -> Events:
        shown = clean.where(f"stream = {IMPRESSION}").select("subject AS ad", "time AS at")
        return self._with_keywords(shown, clean)

    def _labelled(self, clean: Events) -> Events:
        """Look at the last instant for a click, and know the label at the next."""
        within = self.rules.click_within
        clicks = clean.where(f"stream = {CLICK}").select("subject AS ad").window(within)
        shown = self._shown(clean).shift(within - 1)
        return shown.groupApply("ad", _clicked_or_not, clicks).shift(1)

    def _asked(self, clean: Events, requests: Events) -> Events:
        """Give what those who ask have done; asking twice is asking once."""
        once = requests.groupApply("at", lambda same: same.agg(ice.count().alias("times")))
        asked = self._with_keywords(once.select("0L AS ad", "at"), clean)
        return asked.withColumn("label", f"{ASKED}")

    # -- of an ad --------------------------------------------------------------------------

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
        """Give what a keyword adds to the log odds, smoothed; for the bias the prior."""
        s = f"{self.rules.smoothing}D"
        others, all_others = "(examples - clicks)", "(all_examples - all_clicks)"
        prior = f"log((clicks + {s}) / ({others} + {s}))"
        clicked = f"log((clicks + {s}) / (all_clicks + 2 * {s}))"
        not_clicked = f"log(({others} + {s}) / ({all_others} + 2 * {s}))"
        return f"if(keyword = {BIAS}, {prior}, {clicked} - {not_clicked})"


#: how far the rates of clicks with and without a keyword are apart, in standard deviations
_DIFFERENCE = "clicks / examples - (all_clicks - clicks) / (all_examples - examples)"
_RATE = "all_clicks / all_examples"
_SPREAD = f"{_RATE} * (1 - {_RATE}) * (1 / examples + 1 / (all_examples - examples))"
_Z = (
    "CASE WHEN examples < all_examples AND all_clicks > 0 AND all_clicks < all_examples "
    f"THEN ({_DIFFERENCE}) / sqrt({_SPREAD}) ELSE 0D END"
)


def _clicked_or_not(shown: Events, clicks: Events) -> Events:
    """Label what was shown by whether a click is alive; several clicks are one."""
    clicked = shown.join(clicks.agg(ice.count().alias("clicks")))
    names = [name for name in clicked.columns if name != "clicks"]
    return clicked.select(*names, "1 AS label").union(
        shown.difference(clicks).select(*names, "0 AS label")
    )


__all__ = ["ASKED", "BIAS", "Targeting"]
