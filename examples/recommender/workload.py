"""The events of a recommender: ratings and requests, in one stream.

Idea: requests are inserted between the ratings of any source, most of them by a small hot set of
    users.
A request is answered once, or opens a standing one that another event closes later; the event that
closes it has the time at which it was opened, as an end edge has that of its start.

Invariants:
1. Same seed, same events (`test_oracle_the_same_seed_makes_the_same_events`).
2. A hot set of 15 % of the users makes 85 % of the requests, nine for every rating
   (`test_oracle_most_requests_come_from_the_hot_set`, `test_oracle_the_mix_is_as_asked_for`).
3. Registrations of a user never overlap (`test_registrations_of_a_user_alternate`).

Cost: about a microsecond an event.

Limits: times of requests are spread evenly between those of the ratings around them.

References: ICE, sections III-A and VIII.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.demo.randomness import fractions, random_bits
from icestream.demo.replay import EventFile, write_files

#: values of the column `stream`: an update, a request answered once, and the two ends of a
#: standing request
RATING, REQUEST, REGISTER, DEREGISTER = range(4)
#: `since` is when the standing request that an event ends began
EVENT_COLUMNS: dict[str, str] = {
    "time": "timestamp",
    "stream": "int",
    "user": "bigint",
    "item": "bigint",
    "rating": "double",
    "since": "timestamp",
}
EVENT_SPARK_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in EVENT_COLUMNS.items())
EVENT_SCHEMA = pa.schema(
    [
        ("time", pa.timestamp("us", tz="UTC")),
        ("stream", pa.int32()),
        ("user", pa.int64()),
        ("item", pa.int64()),
        ("rating", pa.float64()),
        ("since", pa.timestamp("us", tz="UTC")),
    ]
)

#: time between two requests if there are no ratings to put them between
_REQUEST_GAP: Micros = 1_000
#: draws by purpose, other than those of ratings
_HOT, _IS_HOT, _WHO, _EDGE = range(15, 19)
#: rows generated at once
_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class _Requests:
    """The requests among some events: the place of each, its kind, user and, of an end, start."""

    places: Ints
    streams: Ints
    users: Ints
    #: -1 for none
    since: Ints


@dataclass(frozen=True, slots=True)
class _Edges:
    """Requests that open and close standing ones: their numbers, ascending, kinds and starts."""

    number: Ints
    kind: Ints
    #: -1 for none
    since: Ints


@dataclass(frozen=True, slots=True)
class RatingWorkload:
    """Ratings first, then a mix of ratings and requests, as events of one schema."""

    #: ratings in the order of time, from a file or generated
    ratings: pa.Table
    #: ratings before the first request
    warm_up: int
    #: ratings and requests of the mix; 0 ratings for requests only
    updates: int = 1
    requests: int = 9
    #: events after the warm-up; all other ratings and their requests if None
    events: int | None = None
    #: share of the requests that open or close a standing request
    standing: float = 0.0
    hot_users: float = 0.15
    hot_requests: float = 0.85
    seed: int = 1

    def __post_init__(self) -> None:
        """Raise for invalid values."""
        if not 0 <= self.warm_up <= self.ratings.num_rows or not self.ratings.num_rows:
            msg = (
                "warm_up must be from 0 to the number of ratings, of which there must be some; "
                f"got {self.warm_up} of {self.ratings.num_rows}"
            )
            raise DefinitionError(msg)
        if min(self.updates, self.requests) < 0 or self.updates + self.requests == 0:
            msg = (
                "updates and requests must not be negative, nor both 0; "
                f"got {self.updates} and {self.requests}"
            )
            raise DefinitionError(msg)
        for name in ("standing", "hot_users", "hot_requests"):
            if not 0 <= getattr(self, name) <= 1:
                msg = f"{name} must be a share from 0 to 1; got {getattr(self, name)}"
                raise DefinitionError(msg)
        if self.events is None and self.updates == 0:
            msg = "a workload of requests only has no end: set the number of events"
            raise DefinitionError(msg)
        if self.events is not None and self.updates and self.events > self._most():
            msg = f"the ratings are enough for {self._most()} events; got events={self.events}"
            raise DefinitionError(msg)

    def table(self) -> pa.Table:
        """Return all events, in the order of time."""
        return pa.concat_tables([piece for piece, _ in self._pieces(_ROWS)])

    def write(self, folder: Path, *, rows: int = _ROWS) -> Iterator[EventFile]:
        """Write all events to Parquet files of `rows` each; each when the iterator reaches it."""
        if rows < 1:
            msg = f"a file must hold at least 1 event; got {rows}"
            raise DefinitionError(msg)
        yield from write_files(folder, self._pieces(rows), ["stream", "rating"])

    def hot(self) -> tuple[Ints, Ints]:
        """Return the users of the hot set, and all others."""
        users = np.unique(self.ratings.column("user").to_numpy())
        order = np.argsort(self._bits(_HOT, np.arange(len(users))), kind="stable")
        cut = int(np.ceil(self.hot_users * len(users)))
        return users[order[:cut]], users[order[cut:]]

    def _most(self) -> int:
        """Return the number of events up to the last rating."""
        left = int(self.ratings.num_rows) - self.warm_up
        return -(-left * (self.updates + self.requests) // self.updates)

    def _bits(self, purpose: int, numbers: Ints) -> npt.NDArray[np.uint64]:
        return random_bits(self.seed, purpose, numbers.astype(np.int64).view(np.uint64))

    def _pieces(self, rows: int) -> Iterator[tuple[pa.Table, Micros]]:
        """Yield the events, `rows` at a time, each piece with the event time it reaches."""
        times = self.ratings.column("time").cast(pa.int64()).to_numpy()
        for first in range(0, self.warm_up, rows):
            known = np.arange(first, min(first + rows, self.warm_up))
            yield self._piece(known, times[known], _NO_REQUESTS), int(times[known[-1]])
        events = self._most() if self.events is None else self.events
        crowd = self.hot()
        edges = self._edges(events, times, crowd)
        for first in range(0, events, rows):
            place = np.arange(first, min(first + rows, events))
            index, is_update = self._mix(place)
            at = self._times(place, times)
            number = (place - index)[~is_update]
            stream, since = np.full(len(number), REQUEST), np.full(len(number), -1)
            marked = np.isin(number, edges.number)
            edge = np.searchsorted(edges.number, number[marked])
            stream[marked], since[marked] = edges.kind[edge], edges.since[edge]
            ratings = np.where(is_update, self.warm_up + index, -1)
            requests = _Requests(
                np.flatnonzero(~is_update), stream, self._who(number, crowd), since
            )
            yield self._piece(ratings, at, requests), int(at[-1])

    def _mix(self, place: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the ratings of the mix before each position, and whether one is there."""
        cycle = self.updates + self.requests
        before = place * self.updates // cycle
        return before, (place + 1) * self.updates // cycle > before

    def _times(self, place: Ints, times: Ints) -> Ints:
        """Return event times: ratings have their own, requests are spread evenly in between."""
        if self.updates == 0:
            return int(times[max(self.warm_up - 1, 0)]) + (place + 1) * _REQUEST_GAP
        cycle = self.updates + self.requests
        index = self._mix(place)[0]
        following = self.warm_up + index
        start, end = times[np.maximum(following - 1, 0)], times[following]
        begin = -(-index * cycle // self.updates) - 1
        reach = -(-(index + 1) * cycle // self.updates) - 1
        at: Ints = start + (end - start) * (place - begin) // (reach - begin)
        return at

    def _who(self, number: Ints, crowd: tuple[Ints, Ints]) -> Ints:
        """Return the user of each request by its number."""
        hot, cold = crowd
        is_hot = fractions(self._bits(_IS_HOT, number)) < self.hot_requests
        is_hot = (is_hot | (len(cold) == 0)) & (len(hot) > 0)
        chance = fractions(self._bits(_WHO, number))
        users = np.empty(len(number), dtype=np.int64)
        for group, members in ((is_hot, hot), (~is_hot, cold)):
            users[group] = members[(chance[group] * len(members)).astype(np.int64)]
        return users

    def _edges(self, events: int, times: Ints, crowd: tuple[Ints, Ints]) -> _Edges:
        """Choose requests that open and close standing ones, in turn for each user."""
        found = []
        for first in range(0, events if self.standing else 0, _ROWS):
            place = np.arange(first, min(first + _ROWS, events))
            index, is_update = self._mix(place)
            marked = fractions(self._bits(_EDGE, place - index)) < self.standing
            found.append(place[marked & ~is_update])
        place = np.concatenate([np.empty(0, dtype=np.int64), *found])
        number = place - self._mix(place)[0]
        user, at = self._who(number, crowd), self._times(place, times)
        order = np.lexsort((number, at, user))
        number, user, at = number[order], user[order], at[order]
        # two edges of a user at one instant would make an empty lifetime
        same = (user[1:] == user[:-1]) & (at[1:] == at[:-1])
        keep = np.concatenate([np.ones(min(len(user), 1), dtype=bool), ~same])
        number, user, at = number[keep], user[keep], at[keep]
        opens = (np.arange(len(user)) - np.searchsorted(user, user)) % 2 == 0
        kind = np.where(opens, REGISTER, DEREGISTER)
        since = np.where(opens, -1, np.roll(at, 1))
        order = np.argsort(number)
        return _Edges(number[order], kind[order], since[order])

    def _piece(self, ratings: Ints, at: Ints, requests: _Requests) -> pa.Table:
        """Combine ratings (by row, -1 for none) and requests (by position)."""
        absent = ratings < 0
        rows = self.ratings.take(pa.array(np.maximum(ratings, 0))).combine_chunks()
        stream = np.full(len(at), RATING)
        stream[requests.places] = requests.streams
        since = np.full(len(at), -1)
        since[requests.places] = requests.since
        user = rows.column("user").to_numpy().copy()
        user[requests.places] = requests.users
        columns = [
            pa.array(at, EVENT_SCHEMA.field("time").type),
            pa.array(stream, pa.int32()),
            pa.array(user),
            pa.array(rows.column("item").to_numpy(), mask=absent),
            pa.array(rows.column("rating").to_numpy(), mask=absent),
            pa.array(since, EVENT_SCHEMA.field("since").type, mask=since < 0),
        ]
        return pa.Table.from_arrays(columns, schema=EVENT_SCHEMA)


_NO_REQUESTS = _Requests(*(np.empty(0, dtype=np.int64) for _ in range(4)))
