"""Ratings in the shape of MovieLens.

Idea: how many ratings a user gives and how often an item is rated both have long tails (Weibull).
Items have a genre; users have a taste for each genre, which affects both what they rate and how
they rate it. A user's items are drawn one after the other, without repetition, and rated in
sessions.

Invariants:
1. Same seed, same ratings (`test_oracle_the_same_seed_makes_the_same_ratings`).
2. The numbers of users, items and ratings are as requested; no user rates an item twice
   (`test_oracle_no_user_rates_an_item_twice`).
3. Popularity is skewed as in MovieLens (`test_oracle_popularity_has_long_tails`), ratings come in
   sessions (`test_oracle_users_rate_in_sessions`) and follow taste
   (`test_oracle_items_of_a_genre_are_more_alike`).

Cost: about a microsecond and 100 bytes per rating, all in memory at once.

Limits: the shapes are fitted to the published figures of MovieLens 10M: 143 ratings per user and 20
    at
least, a Gini coefficient of 0.805 of the items (here 0.803) of which the most popular has 34,864
ratings (here 38,636). Times are whole seconds, as in its files.

References: ICE, figure 1 and section VIII; F. Harper and J. Konstan, The MovieLens datasets, 2015.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from examples.recommender.ratings import SCHEMA
from icestream.core.arrays import Floats, Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.demo.randomness import fractions, random_bits

GENRES = 16
_SECOND: Micros = 1_000_000
_DAY: Micros = 86_400 * _SECOND
#: Tuesday, 9 January 1996, 00:00 UTC
BEGIN: Micros = 821_145_600 * _SECOND

#: shapes of the Weibull distributions of ratings per user and per item; less is more skewed
_USER_SHAPE = 0.6
_ITEM_SHAPE = 0.37
#: added to all items, so that nearly all are rated
_ITEM_FLOOR = 0.02
#: MovieLens leaves out users with fewer ratings, a seventh of the mean; so do smaller sets
_LEAST_PER_USER = 20
#: a user rates at most this fraction of the items, unless there are too few items for that
_MOST_OF_ITEMS = 0.7
#: an item of a favourite genre is drawn as often as 1 + this many others
_FAVOURED = 2.0
#: for users who rate more than this fraction of the items, every item is considered
_MANY_OF_ITEMS = 1 / 16
_CELLS_AT_ONCE = 1 << 22
#: a session ends after a rating with this chance, and the next begins days later
_SESSION_ENDS = 0.02
_DAYS_BETWEEN = 20.0
_SECONDS_BETWEEN = 25.0
_MEAN_RATING = 3.5
#: draws by purpose
_USER_RANK, _ITEM_RANK, _GENRE, _LABEL, _TASTE, _ITEM, _RACE, _TURN, _GAP = range(1, 10)
_PAUSE, _JOIN, _NOISE, _LENIENCE, _QUALITY = range(10, 15)


@dataclass(frozen=True, slots=True)
class Ratings:
    """Ratings of items by users, all generated at once."""

    users: int = 70_000
    items: int = 10_600
    ratings: int = 10_000_000
    seed: int = 1
    begin: Micros = BEGIN
    #: maximum time from the first rating to the last
    span: Micros = 13 * 365 * _DAY

    def __post_init__(self) -> None:
        """Raise for invalid values."""
        if min(self.users, self.items, self.ratings) < 1:
            msg = (
                "there must be at least 1 user, 1 item and 1 rating; "
                f"got {self.users}, {self.items}, {self.ratings}"
            )
            raise DefinitionError(msg)
        if self.ratings > self.users * self.items:
            msg = (
                f"{self.users} users can give {self.items} items at most "
                f"{self.users * self.items} ratings, each once; got {self.ratings}"
            )
            raise DefinitionError(msg)
        if self.span < 1:
            msg = f"span must be at least 1 microsecond; got {self.span}"
            raise DefinitionError(msg)

    def table(self) -> pa.Table:
        """Return all ratings, in the order of time."""
        counts = self.counts()
        genre, label, taste = self._genres(), self._labels(), self._tastes()
        user, item = self._chosen(counts, genre, taste)
        values = self._values(user, item, genre, taste)
        times = self._times(counts)
        # rows are numbered by user; sorting time and row as one number is fastest
        bits = max(int(self.ratings).bit_length(), 1)
        order = np.sort(times << bits | np.arange(self.ratings)) & ((1 << bits) - 1)
        columns = (
            pa.array(times[order] * _SECOND + self.begin, SCHEMA.field("time").type),
            pa.array(user[order] + 1),
            pa.array(label[item[order]]),
            pa.array(values[order]),
        )
        return pa.Table.from_arrays(list(columns), schema=SCHEMA)

    def genre_of(self, items: Ints) -> Ints:
        """Return the genres of items by their number, from 1."""
        genres = np.empty(self.items, dtype=np.int64)
        genres[self._labels() - 1] = self._genres()
        return genres[items - 1]

    def counts(self) -> Ints:
        """Return the number of ratings of each user; they add up to `ratings`."""
        least = min(_LEAST_PER_USER, self.ratings // (7 * self.users))
        most = int(_MOST_OF_ITEMS * self.items)
        if self.ratings > most * self.users // 2:
            most = self.items
        extra = _weibull(self._shuffled(_USER_RANK, self.users), self.users, _USER_SHAPE)
        low, high = 0.0, 2.0 * self.ratings * self.users
        while high - low > 1e-12 * high:
            scale = (low + high) / 2
            if np.minimum(np.floor(least + scale * extra), most).sum() > self.ratings:
                high = scale
            else:
                low = scale
        exact = np.minimum(least + low * extra, most)
        counts = np.floor(exact).astype(np.int64)
        # the remainder of rounding down goes to the users who lost most by it
        room = np.where(counts < most, exact - counts, -1.0)
        while left := self.ratings - int(counts.sum()):
            open_to = np.flatnonzero(counts < most)
            nearest = open_to[np.argsort(-room[open_to], kind="stable")[:left]]
            counts[nearest] += 1
        return counts

    def _shuffled(self, purpose: int, count: int) -> Ints:
        """Return the numbers from 0 to `count` in a random order."""
        bits = random_bits(self.seed, purpose, np.arange(count, dtype=np.uint64))
        return np.argsort(bits, kind="stable")

    def _draws(self, purpose: int, first: int, count: int) -> Floats:
        """Return uniform draws from (0, 1)."""
        counters = np.arange(first, first + count, dtype=np.int64).view(np.uint64)
        return fractions(random_bits(self.seed, purpose, counters))

    def _bells(self, purpose: int, count: int) -> Floats:
        """Return draws from a bell curve around 0 with variance 1: sums of four uniform ones."""
        bits = random_bits(self.seed, purpose, np.arange(count, dtype=np.uint64))
        sums = bits.view(np.uint16).reshape(-1, 4).sum(axis=1, dtype=np.int64)
        bells: Floats = (sums + 2) * (3**0.5 / 2**16) - 2 * 3**0.5
        return bells

    def _genres(self) -> Ints:
        """Return the genre of each item; items are ordered by genre, and numbered at random."""
        return np.sort((self._draws(_GENRE, 0, self.items) * GENRES).astype(np.int64))

    def _labels(self) -> Ints:
        return self._shuffled(_LABEL, self.items) + 1

    def _tastes(self) -> Floats:
        """Return how much each user likes each genre."""
        return self._bells(_TASTE, self.users * GENRES).reshape(self.users, GENRES)

    def _chosen(self, counts: Ints, genre: Ints, taste: Floats) -> tuple[Ints, Ints]:
        """Choose the items of each user; return users and items in the order of rating."""
        weights = _weibull(self._shuffled(_ITEM_RANK, self.items), self.items, _ITEM_SHAPE)
        weights += _ITEM_FLOOR
        favourites = np.argpartition(-taste, 1, axis=1)[:, :2]
        many = counts > _MANY_OF_ITEMS * self.items
        chosen = np.concatenate(
            [
                self._chosen_from_few(np.where(many, 0, counts), weights, genre, favourites),
                self._chosen_from_all(np.flatnonzero(many), counts, weights, genre, favourites),
            ]
        )
        turn = random_bits(self.seed, _TURN, chosen.view(np.uint64)) >> np.uint64(24)
        user = chosen // self.items
        order = np.argsort((user << 40) | turn.view(np.int64), kind="stable")
        user, item = np.divmod(chosen[order], self.items)
        return user, item

    def _chosen_from_few(
        self, counts: Ints, weights: Floats, genre: Ints, favourites: Ints
    ) -> Ints:
        """Draw items with replacement, and again for each item that a user already has."""
        ends = np.cumsum(weights) / weights.sum()
        mass = np.bincount(genre, weights / weights.sum(), GENRES)
        begins = np.cumsum(mass) - mass
        held, wanted, drawn = np.empty(0, dtype=np.int64), counts.copy(), 0
        while wanted.any():
            tries = np.where(wanted, 2 * wanted + 4, 0) if len(held) else wanted
            user = np.repeat(np.arange(self.users), tries)
            first, second = favourites[user].T
            # one draw from a list: all items, then those of the two favourite genres again
            line = self._draws(_ITEM, drawn, len(user))
            drawn += len(user)
            line *= 1 + _FAVOURED * (mass[first] + mass[second])
            of_first = (line - 1) / _FAVOURED
            of_second = of_first - mass[first]
            place = np.where(of_second < 0, begins[first] + of_first, begins[second] + of_second)
            place = np.where(line < 1, line, place)
            item = np.minimum(np.searchsorted(ends, place, side="right"), self.items - 1)
            fresh = _first_of_each(user * self.items + item, held)
            user = fresh // self.items
            starts = np.searchsorted(user, np.arange(self.users))
            fresh = fresh[np.arange(len(fresh)) - starts[user] < wanted[user]]
            wanted -= np.bincount(fresh // self.items, minlength=self.users)
            held = np.sort(np.concatenate([held, fresh]))
        return held

    def _chosen_from_all(
        self, users: Ints, counts: Ints, weights: Floats, genre: Ints, favourites: Ints
    ) -> Ints:
        """Draw an exponential time for every item, shorter for heavy ones; take the shortest."""
        chosen = [np.empty(0, dtype=np.int64)]
        at_once = max(1, _CELLS_AT_ONCE // self.items)
        for first in range(0, len(users), at_once):
            some = users[first : first + at_once]
            draws = self._draws(_RACE, first * self.items, len(some) * self.items)
            arrival = -np.log(draws).reshape(len(some), self.items) / weights
            for favourite in favourites[some].T:
                arrival[genre == favourite[:, None]] /= 1 + _FAVOURED
            rows = np.argsort(arrival, axis=1, kind="stable")
            home = np.arange(self.items) < counts[some][:, None]
            chosen.append((some[:, None] * self.items + rows)[home])
        return np.concatenate(chosen)

    def _values(self, user: Ints, item: Ints, genre: Ints, taste: Floats) -> Floats:
        """Return ratings: an offset for the user, one for the item, plus taste and chance."""
        stars = 0.7 * taste.ravel()[user * GENRES + genre[item]]
        stars += 0.4 * self._bells(_LENIENCE, self.users)[user]
        stars += 0.4 * self._bells(_QUALITY, self.items)[item]
        stars += 0.5 * self._bells(_NOISE, len(user)) + _MEAN_RATING
        halves: Floats = np.clip(np.rint(2 * stars), 1, 10)
        return halves / 2

    def _times(self, counts: Ints) -> Ints:
        """Return the second of each rating after the beginning, user by user."""
        first = np.cumsum(counts) - counts
        gaps = -np.log(self._draws(_GAP, 0, self.ratings)) * _SECONDS_BETWEEN
        pauses = np.flatnonzero(self._draws(_PAUSE, 0, self.ratings) < _SESSION_ENDS)
        gaps[pauses] *= _DAYS_BETWEEN * 86_400 / _SECONDS_BETWEEN
        rated = counts > 0
        gaps[first[rated]] = 0.0
        after = np.cumsum(gaps)
        after -= np.repeat(after[first[rated]], counts[rated])
        length = np.zeros(self.users)
        length[rated] = after[(first + counts - 1)[rated]]
        span = self.span / _SECOND
        squeeze = np.minimum(1.0, span / np.maximum(length, 1e-9))
        join = self._draws(_JOIN, 0, self.users) * (span - length * squeeze)
        times = np.repeat(join, counts) + after * np.repeat(squeeze, counts)
        seconds: Ints = times.astype(np.int64)
        return np.minimum(seconds, (self.span - 1) // _SECOND)


def _weibull(ranks: Ints, count: int, shape: float) -> Floats:
    """Return the quantile of a Weibull distribution for a rank out of `count`."""
    values: Floats = (-np.log((ranks + 0.5) / count)) ** (1 / shape)
    return values


def _first_of_each(drawn: Ints, held: Ints) -> Ints:
    """Keep the first of equal numbers, in the order drawn, without those in the sorted `held`."""
    values, place = np.unique(drawn, return_index=True)
    if len(held):
        nearest = np.minimum(np.searchsorted(held, values), len(held) - 1)
        place = place[held[nearest] != values]
    return drawn[np.sort(place)]
