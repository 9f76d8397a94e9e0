"""Answers of the recommender, added up from result rows, and compared with the offline model.

Idea: result rows state for how long an item is in an answer, and changes may retract that; their
    sum
at a time is the answer to a request at that time. An answer is right if it has the scores of the
best items and the right score for each item, up to rounding: of equal scores either may be in it.

Invariants:
1. Changes add up to the answers of every time
   (`test_oracle_changes_add_up_to_the_answers_of_an_instant`).
2. An answer with a wrong item, a wrong score or a missing item is reported
   (`test_answers_that_are_wrong_are_reported`).

Cost: a few Python objects for each row that was not retracted; for demos and tests.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.core.arrays import Floats, Ints
from icestream.core.times import INFINITY, Micros
from icestream.demo.results import micros_of

#: scores that differ by less count as equal
_CLOSE = 1e-9


class ScoredItems(Protocol):
    """A model of ratings, at one time."""

    def scores(self, user: int) -> tuple[Ints, Floats]:
        """Return all items that can be recommended to a user, ascending, and their scores."""
        ...


class Request(NamedTuple):
    """The user and the time of a request."""

    user: int
    asked: Micros


class RecommendedItem(NamedTuple):
    """A recommended item with its score."""

    item: int
    score: float


#: best first
Answer = list[RecommendedItem]


class _Row(NamedTuple):
    """An item in an answer, for a while."""

    item: RecommendedItem
    start: Micros
    end: Micros


class Recommendations:
    """The sum of result rows, of either mode."""

    def __init__(self) -> None:
        """Start empty."""
        self._rows: dict[Request, Counter[_Row]] = defaultdict(Counter)

    def take(self, rows: pa.Table) -> None:
        """Add result rows, in any order."""
        lifetime = rows.column("lifetime").combine_chunks()
        columns = {
            "user": rows.column("user"),
            "asked": micros_of(rows.column("asked")),
            "item": rows.column("item"),
            "score": rows.column("score"),
            "start": micros_of(lifetime.field("start")),
            "end": pc.fill_null(micros_of(lifetime.field("end")), INFINITY),
            "change": rows.column("change")
            if "change" in rows.column_names
            else pa.array(np.ones(rows.num_rows, dtype=np.int32)),
        }
        listed = (each.to_pylist() for each in columns.values())
        for user, asked, item, score, start, end, change in zip(*listed, strict=True):
            answer = self._rows[Request(user, asked)]
            row = _Row(RecommendedItem(item, score), start, end)
            answer[row] += change
            if not answer[row]:
                del answer[row]

    def of(self, request: Request, instant: Micros) -> Answer:
        """Return the answer to a request at a time."""
        rows = self._rows.get(request, Counter())
        return ranked([row.item for row in rows if row.start <= instant < row.end])

    def at(self, instant: Micros) -> dict[Request, Answer]:
        """Return all answers at a time, without those that are empty."""
        answers = {request: self.of(request, instant) for request in self._rows}
        return {request: answer for request, answer in answers.items() if answer}

    def latest(self, now: Micros, most: int) -> list[tuple[Request, Answer]]:
        """Return the answers that began last, up to a time, latest first."""
        began = {
            request: max((row.start for row in rows if row.start <= now), default=None)
            for request, rows in self._rows.items()
        }
        known = [(start, request) for request, start in began.items() if start is not None]
        newest = sorted(known, key=lambda each: (-each[0], each[1]))[:most]
        return [(request, self.of(request, start)) for start, request in newest]


def ranked(answer: Sequence[RecommendedItem]) -> Answer:
    """Return an answer sorted, best first."""
    return sorted(answer, key=lambda each: (-each.score, each.item))


def wrong(answer: Sequence[RecommendedItem], model: ScoredItems, user: int, k: int) -> str | None:
    """Return how an answer to a user differs from the offline model, if it does."""
    items, scores = model.scores(user)
    best = np.sort(scores)[::-1][:k]
    if len(answer) != len(best):
        return f"user {user} got {len(answer)} items instead of {len(best)}"
    given = np.array([each.score for each in ranked(answer)])
    off = ~np.isclose(given, best, rtol=_CLOSE, atol=_CLOSE)
    if off.any():
        place = int(np.argmax(off))
        return f"user {user}, place {place + 1}: score {given[place]} instead of {best[place]}"
    own = dict(zip(items.tolist(), scores.tolist(), strict=True))
    for each in answer:
        if not np.isclose(own.get(each.item, np.nan), each.score, rtol=_CLOSE, atol=_CLOSE):
            return f"user {user}: item {each.item} does not have the score {each.score}"
    return None
