"""The recommender as a query: similarities of items and recommendations, in one stream.

Idea: four groupings, one inside or after the other. By *user*: ratings are paired with each other
    and
with the user's requests. By *item*: pairs become similarities, one for each other item, and are
joined with the ratings of requesting users. By *request*: an average of the user's ratings weighted
by similarity scores every other item, and those that the user has not rated are ranked.

    user    ratings x ratings    -> user, item1, r1, item2, r2
            requests x ratings   -> user, asked, item1, r1
    item1   item2: similarity = sum r1 r2 / sqrt(sum r1^2 * sum r2^2)
            rated x similarities -> user, asked, item1, r1, item2, similarity
    asked   item2: score = sum similarity r1 / sum similarity, not where rated; the best k

Invariants:
1. Answers agree with the offline model at their times, for any batches
   (`test_oracle_requests_are_answered_as_by_the_offline_model`,
   `test_oracle_standing_requests_follow_every_rating`).
2. Two requests of a user do not mix (`test_requests_of_a_user_do_not_mix`).

Cost: a rating of a user with n alive ones makes 2 n pairs; a request of such a user reads as many
similarity vectors. With a window, lifetimes end at different times, so a pair changes a
similarity once for each other pair of the two items that ends before it.

Limits: equal requests of a user at one time count as one. Ratings must be above 0, else
    similarities
may add up to 0, and such items are left out.

References: ICE, section III-A and figure 2.
"""

from __future__ import annotations

import icestream as ice
from icestream.api.events import Events

#: columns of the answers, after the lifetime
ANSWER = ("user", "asked", "item", "score")


def recommendations(events: Events, *, k: int = 10, window: str | None = None) -> Events:
    """Recommend items to users on request.

    Args:
        events: ratings and requests, with the columns of `workload.EVENT_SCHEMA`.
        k: maximum number of items in an answer.
        window: how long a rating counts; None means for ever.

    Returns:
        Events `(user, asked, item, score)`; the answer to a plain request lives for an instant,
        those to standing ones for as long as they are true.
    """
    ratings = events.where("stream = 0").alterLifetime(window)
    requests = events.where("stream <> 0")
    met = ratings.groupApply("user", _of_user, requests)
    pairs = met.where("stream = 0").select("item1", "r1", "item2", "r2")
    rated = met.where("stream <> 0").select("user", "asked", "item1", "r1")
    weighted = pairs.groupApply("item1", _of_item, rated)
    known = rated.select("user", "asked", "item1 AS item")
    return weighted.groupApply(
        ("user", "asked"), lambda items, seen: _of_request(items, seen, k), known
    )


def _of_user(ratings: Events, requests: Events) -> Events:
    """Pair the ratings of a user with each other, and with the user's requests."""
    asking = requests.edges(start="stream = 2", end="stream = 3", since="since")
    met = [
        each.select("stream", "time AS asked", "item AS item2", "rating AS r2")
        for each in (ratings, asking)
    ]
    own = ratings.select("item AS item1", "rating AS r1")
    return own.join(met[0].union(met[1]), where="stream <> 0 OR item1 <> item2")


def _of_item(pairs: Events, rated: Events) -> Events:
    """Compute an item's similarity to others; join it with requesting users who rated the item."""
    sums = pairs.groupApply(
        "item2",
        lambda pair: pair.agg(
            ice.sum("r1 * r2").alias("dot"),
            ice.sum("r1 * r1").alias("n1"),
            ice.sum("r2 * r2").alias("n2"),
        ),
    )
    alike = sums.where("n1 * n2 > 0").select("item2 AS item", "dot / sqrt(n1 * n2) AS similarity")
    return rated.join(alike)


def _of_request(weighted: Events, known: Events, k: int) -> Events:
    """Score the items of a request; keep the best of those that the user has not rated."""

    def score(item: Events, seen: Events) -> Events:
        sums = item.agg(
            ice.sum("similarity * r1").alias("liked"), ice.sum("similarity").alias("alike")
        )
        return sums.where("alike <> 0").select("liked / alike AS score").difference(seen)

    scores = weighted.groupApply("item", score, known)
    return scores.top(k, by="score")


__all__ = ["ANSWER", "recommendations"]
