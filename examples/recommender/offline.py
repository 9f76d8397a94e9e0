r"""The recommender's model at one time, computed from all ratings: exact, slow and obvious.

Idea: of the ratings that are alive at a time, pair those of the same user. For two items, sums
over these pairs give their similarity, the cosine of the ratings by users who rated both:

    sim(i, j) = sum r_i r_j / sqrt(sum r_i^2 * sum r_j^2)
    score(u, j) = sum sim(i, j) r(u, i) / sum sim(i, j)     over the alive ratings of u, i != j

Lifetimes: a rating at time `le` is alive at t where le <= t < le + window, and for ever without a
window. Ratings are a bag, as in a join: a user who rates an item twice has two ratings that pair
with all others of theirs. Of equal scores the lower item comes first.

Invariants:
1. Similarities and recommendations follow the definition literally
   (`test_oracle_the_model_is_its_definition`).
2. The number of pairs summed at once changes nothing (`test_oracle_chunks_of_pairs_do_not_show`).
3. The ends of a lifetime are as defined (`test_a_rating_is_alive_from_its_time_to_its_end`).

Cost: n * (n - 1) / 2 pairs for a user of n ratings, sorted in chunks; 16 bytes for each two items
that have a user in common, twice.

Limits: two items whose common ratings are all 0 have no similarity and are left out. Sums of half
stars are exact; scores are not, so those that differ by rounding only may come in any order.

References: ICE, section III-A; B. Sarwar et al., Item-based collaborative filtering, WWW 2001.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Floats, Ints, numbers_of
from icestream.core.times import INFINITY, Micros

_PAIRS_AT_ONCE = 1 << 21


def alive_at(ratings: pa.Table, t: Micros, window: Micros | None = None) -> pa.Table:
    """Return the ratings that are alive at time `t`."""
    times = ratings.column("time").cast(pa.int64()).to_numpy()
    alive = times <= t
    if window is not None and window < INFINITY:
        alive &= times > t - window
    return ratings.filter(pa.array(alive))


@dataclass(frozen=True, slots=True)
class SimilarityModel:
    """Similarities of items and the ratings of users, at one time."""

    #: numbers of the items, ascending; below, items are referred to by their position in it
    items: Ints
    #: neighbours of item p are `neighbour[first[p]:first[p + 1]]`, ascending
    first: Ints
    neighbour: Ints
    similarity: Floats
    #: users, ascending, each repeated for every live rating
    rater: Ints
    rated: Ints
    rating: Floats

    @staticmethod
    def at(
        ratings: pa.Table,
        t: Micros,
        window: Micros | None = None,
        *,
        pairs_at_once: int = _PAIRS_AT_ONCE,
    ) -> SimilarityModel:
        """Build the model of the ratings that are alive at `t`.

        Args:
            ratings: columns `time`, `user`, `item`, `rating`, in any order of rows.
            t: the time, in microseconds since the epoch.
            window: how long a rating lives; for ever if None.
            pairs_at_once: pairs of ratings summed at once; bounds memory, changes nothing.
        """
        alive = alive_at(ratings, t, window)
        items, place = np.unique(alive.column("item").to_numpy(), return_inverse=True)
        user, rating = (np.asarray(alive.column(name).to_numpy()) for name in ("user", "rating"))
        order = np.lexsort((place, user))
        user, place, rating = user[order], place[order], rating[order]
        pairs = _sums(_pairs(user, place, rating, pairs_at_once))
        one, other = np.divmod(pairs.key, max(len(items), 1))
        norm = np.sqrt(pairs.first * pairs.second)
        real = norm > 0
        cosine = pairs.dot[real] / norm[real]
        one, other = np.append(one[real], other[real]), np.append(other[real], one[real])
        order = np.lexsort((other, one))
        return SimilarityModel(
            items=items,
            first=np.searchsorted(one[order], np.arange(len(items) + 1)),
            neighbour=other[order],
            similarity=np.append(cosine, cosine)[order],
            rater=user,
            rated=place,
            rating=rating,
        )

    def similarities(self, item: int) -> list[tuple[int, float]]:
        """Return the items that share users with `item`, ascending, each with its similarity."""
        place = int(np.searchsorted(self.items, item))
        if place == len(self.items) or self.items[place] != item:
            return []
        near = slice(self.first[place], self.first[place + 1])
        found = zip(self.items[self.neighbour[near]], self.similarity[near], strict=True)
        return [(int(other), float(similarity)) for other, similarity in found]

    def scores(self, user: int, *, exclude_rated: bool = True) -> tuple[Ints, Floats]:
        """Return all items that can be recommended to a user, ascending, and their scores."""
        mine = slice(*np.searchsorted(self.rater, [user, user + 1]))
        rated, rating = self.rated[mine], self.rating[mine]
        begin, end = self.first[rated], self.first[rated + 1]
        near = numbers_of(begin, end)
        weight, other = self.similarity[near], self.neighbour[near]
        weighted = weight * np.repeat(rating, end - begin)
        total = np.bincount(other, weight, len(self.items))
        wanted = np.bincount(other, minlength=len(self.items)) > 0
        wanted &= total != 0
        if exclude_rated:
            wanted[rated] = False
        summed = np.bincount(other, weighted, len(self.items))
        return self.items[wanted], summed[wanted] / total[wanted]

    def recommend(
        self, user: int, k: int, *, exclude_rated: bool = True
    ) -> list[tuple[int, float]]:
        """Return the `k` items with the highest scores for a user, best first."""
        items, scores = self.scores(user, exclude_rated=exclude_rated)
        best = np.lexsort((items, -scores))[:k]
        return [(int(items[each]), float(scores[each])) for each in best]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs of ratings, or sums of them, each under the number of its two items."""

    key: Ints
    dot: Floats
    first: Floats
    second: Floats


def _pairs(user: Ints, item: Ints, rating: Floats, at_once: int) -> Iterator[_Pairs]:
    """Pair the ratings of each user, ordered by user and item, with those of higher items."""
    items = int(item.max()) + 1 if len(item) else 1
    end = np.searchsorted(user, user, side="right")
    begin = np.arange(len(user)) + 1
    done = np.cumsum(end - begin)
    row = 0
    while row < len(user):
        before = int(done[row - 1]) if row else 0
        stop = max(row + 1, int(np.searchsorted(done, before + at_once, side="right")))
        one = np.repeat(np.arange(row, stop), (end - begin)[row:stop])
        other = numbers_of(begin[row:stop], end[row:stop])
        apart = item[one] != item[other]
        one, other = one[apart], other[apart]
        r1, r2 = rating[one], rating[other]
        yield _Pairs(item[one] * items + item[other], r1 * r2, r1 * r1, r2 * r2)
        row = stop


def _sums(chunks: Iterator[_Pairs]) -> _Pairs:
    """Add up the pairs of the same two items."""
    waiting = [_summed([])]
    for chunk in chunks:
        waiting.append(_summed([chunk]))
        # like a binary counter: two parts of equal size are merged into one of twice the size
        while len(waiting) > 1 and len(waiting[-1].key) * 2 > len(waiting[-2].key):
            waiting[-2:] = [_summed(waiting[-2:])]
    return _summed(waiting)


def _summed(parts: list[_Pairs]) -> _Pairs:
    """Add up several lists of pairs; the result is in the order of keys."""
    key = np.concatenate([np.empty(0, dtype=np.int64), *(part.key for part in parts)])
    order = np.argsort(key, kind="stable")
    key = key[order]
    starts = np.flatnonzero(np.append(np.ones(min(len(key), 1), dtype=bool), key[1:] != key[:-1]))
    sums = []
    for name in ("dot", "first", "second"):
        values = np.concatenate([np.empty(0), *(getattr(part, name) for part in parts)])[order]
        sums.append(np.add.reduceat(values, starts) if len(starts) else values)
    return _Pairs(key[starts], *sums)
