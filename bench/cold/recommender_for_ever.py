"""The recommender over ratings that count for ever: state that grows as long as the run lasts.

Idea: the whole query gets all ratings of a file, or generated ones, and a request for every four,
in little memory and with enough of it, in turn. A model in memory follows the same events and
checks every answer. Live rows are counted from the model: each rating is stored on both sides of a
join; each two items that a user rated have a row of sums and a similarity, in both directions.

Invariants:
1. The model is that of `examples.recommender.offline` at each time
   (`test_oracle_the_running_model_is_the_offline_model`).

Cost: a few numpy calls for each rated item of a request, one dictionary update for each pair.

Limits: a live row counts with a word for each column, or sum, and 16 bytes of identity; what else
the log has, as lengths and pointers, does not count as live.

References: ICE, section VIII-B: figures 5c and 6a, where memory grows without a limit.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.cold.cold_zipf import UNLIMITED, ZipfRun
from bench.cold.recommender_over_time import ENOUGH, LITTLE, K, batches, lines
from examples.recommender.answers import Recommendations, Request, wrong
from examples.recommender.generator import Ratings
from examples.recommender.ratings import read_table
from examples.recommender.workload import REQUEST, RatingWorkload
from icestream.core.arrays import Floats, Ints
from icestream.plan.events.dataflow import Dataflow

#: the whole query over ratings that count for ever
FOR_EVER = "ratings for ever"
#: names a file of ratings
RATINGS = "ICESTREAM_RATINGS"
#: ratings and requests among five events
MIX = 4, 1
#: bytes of live rows: a rating on both sides of the join, the sums and the similarity of two items
IDENTITY, WORD = 16, 8
RATING_BYTES = 2 * IDENTITY + WORD * (6 + 8)
PAIR_BYTES = 2 * IDENTITY + WORD * (5 + 6)


@dataclass(frozen=True, slots=True)
class Lasting:
    """Ratings that count for ever, and requests between them."""

    users: int
    items: int
    ratings: int
    #: events of a batch
    batch: int
    budget: int


@dataclass
class _Item:
    """The items that share a user with one, and sums over their common ratings."""

    place: dict[int, int] = field(default_factory=dict)
    others: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    #: products, squares of the own ratings, squares of the others
    sums: Floats = field(default_factory=lambda: np.empty((0, 3)))

    def add(self, other: int, mine: float, theirs: float) -> None:
        at = self.place.setdefault(other, len(self.place))
        if at == len(self.others):
            room = max(8, 2 * at)
            self.others = np.resize(self.others, room)
            self.sums = np.concatenate([self.sums[:at], np.zeros((room - at, 3))])
        self.others[at] = other
        self.sums[at] += mine * theirs, mine * mine, theirs * theirs


class RunningModel:
    """Similarities and ratings as they are after the ratings so far."""

    def __init__(self) -> None:
        """Start without ratings."""
        self._rated: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
        self._items: defaultdict[int, _Item] = defaultdict(_Item)
        self.ratings = 0

    @property
    def pairs(self) -> int:
        """Return how many pairs of an item and another one have a user in common."""
        return sum(len(each.place) for each in self._items.values())

    @property
    def live_bytes(self) -> int:
        """Return the bytes of rows that can still change an answer."""
        return self.ratings * RATING_BYTES + self.pairs * PAIR_BYTES

    def rate(self, user: int, item: int, rating: float) -> None:
        """Add a rating."""
        for other, theirs in self._rated[user]:
            if other != item:
                self._items[item].add(other, rating, theirs)
                self._items[other].add(item, theirs, rating)
        self._rated[user].append((item, rating))
        self.ratings += 1

    def scores(self, user: int) -> tuple[Ints, Floats]:
        """Return all items that can be recommended to a user, ascending, and their scores."""
        mine = self._rated.get(user, [])
        near, weights, weighted = [np.empty(0, dtype=np.int64)], [np.empty(0)], [np.empty(0)]
        for item, rating in mine:
            each = self._items[item]
            dot, first, second = each.sums[: len(each.place)].T
            norm = np.sqrt(first * second)
            # items whose common ratings are all 0 have no similarity
            real = norm > 0
            near.append(each.others[: len(each.place)][real])
            weights.append(dot[real] / norm[real])
            weighted.append(weights[-1] * rating)
        items, place = np.unique(np.concatenate(near), return_inverse=True)
        total = np.bincount(place, np.concatenate(weights), len(items))
        liked = np.bincount(place, np.concatenate(weighted), len(items))
        new = (total != 0) & ~np.isin(items, [item for item, _ in mine])
        return items[new], liked[new] / total[new]


def wrong_for_ever(events: pa.Table, model: RunningModel, answers: list[Recommendations]) -> int:
    """Feed all events to the model; return how many answers differ from its own."""
    names = ("stream", "user", "item", "rating")
    columns = [events.column(name).to_numpy() for name in names]
    times: Ints = events.column("time").cast(pa.int64()).to_numpy()
    found = 0
    # a request sees all ratings of its instant
    for at in np.lexsort((columns[0] == REQUEST, times)).tolist():
        stream, user, item, rating = (column[at] for column in columns)
        if stream != REQUEST:
            model.rate(int(user), int(item), float(rating))
            continue
        asked, now = Request(int(user), int(times[at])), int(times[at])
        given = (each.of(asked, now) for each in answers)
        found += sum(wrong(answer, model, int(user), K) is not None for answer in given)
    return found


def for_ever(scale: Lasting, flow: Dataflow, folder: Path) -> dict[str, Any]:
    """Run the whole query over ratings of a file, or generated ones, with requests."""
    file = os.environ.get(RATINGS)
    ratings = Ratings(scale.users, scale.items, scale.ratings).table()
    if file:
        ratings = read_table(Path(file)).slice(0, scale.ratings)
    updates, requests = MIX
    events = RatingWorkload(ratings, 0, updates=updates, requests=requests).table()
    cuts: npt.NDArray[np.int64]
    cuts = np.append(np.arange(0, len(events), scale.batch), len(events))
    budgets = {ENOUGH: UNLIMITED, LITTLE: scale.budget}
    runs = {name: ZipfRun(flow, budget, str(folder / name)) for name, budget in budgets.items()}
    answers = {name: Recommendations() for name in runs}
    turns = list(runs)
    for batch in batches(events, cuts, flow.batch_schema):
        turns.reverse()
        for name in turns:
            answers[name].take(runs[name].feed(batch))
    model = RunningModel()
    differ = wrong_for_ever(events, model, list(answers.values()))
    enough, little = runs[ENOUGH], runs[LITTLE]
    share, last = updates / (updates + requests), -max(1, len(little.cpu) // 10)
    figures = {
        "ratings": len(ratings),
        "of_a_file": bool(file),
        "budget_bytes": scale.budget,
        "peak_bytes": little.peak,
        "ratings_per_cpu_second": share * little.rate(cpu=True),
        "ratings_per_cpu_second_at_the_end": share * little.rate(last, cpu=True),
        "cpu_ratio_at_the_end": little.rate(last, cpu=True) / enough.rate(last, cpu=True),
        "memory_saved_at_the_end": 1 - little.held[-1] / enough.held[-1],
        "log_bytes": little.log_bytes,
        "live_bytes": model.live_bytes,
        "log_to_live": little.log_bytes / model.live_bytes,
        "answers_compared": len(events) - len(ratings),
        "wrong": differ,
        "lines": {name: lines(run, 0) for name, run in runs.items()},
    }
    for run in runs.values():
        run.close()
    return figures
