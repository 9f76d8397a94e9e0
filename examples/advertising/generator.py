"""What users of a web site see, click and search for, with bots among them.

Idea: users come in sessions of a few minutes, some users far more often than others. In a session
they search for keywords, mostly their own few interests, and are shown ads. An ad has keywords of
its own; a user who searched for one of them earlier in the session is far more likely to click. A
few users are bots, who come again and again, search for anything and click nearly everything.
Session `n` is a pure function of the seed and of `n`, so any interval can be generated alone.

Invariants:
1. Same seed, same events, however time is divided (`test_oracle_events_do_not_depend_on_the_cuts`).
2. Users are skewed (`test_oracle_a_few_users_are_behind_many_events`), bots more so
   (`test_oracle_bots_click_and_search_very_often`).
3. Keywords of an ad raise its clicks (`test_oracle_keywords_of_an_ad_raise_its_clicks`).
4. A session is over in half an hour, clicks included (`test_bounded_a_session_ends`).

Cost: about two microseconds per event; memory for an hour of events.

Limits: all distributions are chosen here; the paper describes the queries, not the data.

References: ICE, section III-B; B. Chandramouli, J. Goldstein and S. Duan, Temporal analytics on big
data for web advertising, ICDE 2012.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Floats, Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.demo.randomness import fractions, random_bits
from icestream.demo.replay import EventFile, write_files

#: values of the column `stream`
IMPRESSION, CLICK, SEARCH = range(3)
COLUMNS: dict[str, str] = {
    "time": "timestamp",
    "stream": "int",
    "user": "bigint",
    "subject": "bigint",
}
SPARK_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
#: `subject` is an ad for impressions and clicks, a keyword for searches
SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("stream", pa.int32(), nullable=False),
        pa.field("user", pa.int64(), nullable=False),
        pa.field("subject", pa.int64(), nullable=False),
    ]
)

_SECOND: Micros = 1_000_000
_HOUR: Micros = 3_600 * _SECOND
_DAY: Micros = 24 * _HOUR
#: Thursday, 1 January 2026, 00:00 UTC
BEGIN: Micros = 1_767_225_600 * _SECOND
#: maximum time from the first step of a session to the last click
LONGEST: Micros = _HOUR // 2
KEYWORDS_OF_AN_AD = 3

_STEPS = 12
_FEWEST_STEPS = 2
_BRIEFEST_STEP, _LONGEST_STEP = 5 * _SECOND, 90 * _SECOND
_LONGEST_HESITATION = 600 * _SECOND
_INTERESTS = 3
_SEARCHES_OF_INTEREST = 0.6
_CLICKS, _CLICKS_OF_INTERESTED, _CLICKS_OF_BOTS = 0.03, 0.3, 0.9
_BOT_SESSIONS = 0.05
#: no person comes more often than this many times the mean
_BUSIEST_PERSON = 10.0
_SKEW = 0.7
_KEYWORD_SKEW = 0.6
_SESSIONS_AT_ONCE = 1 << 14
#: draws by purpose
_ACTIVITY, _ORDER, _AD_KEYWORD, _INTEREST, _IS_BOT, _WHO, _LENGTH = range(1, 8)
_PAUSE, _KIND, _KEYWORD, _WHICH, _AD, _CLICKED, _HESITATION = range(8, 15)


@dataclass(frozen=True, slots=True)
class AdEvents:
    """The stream: impressions, clicks and searches, in the order of time."""

    users: int = 10_000
    ads: int = 40
    keywords: int = 300
    #: users that are bots; None means one in two thousand
    bots: int | None = None
    #: mean sessions per day and user, including bots
    sessions: int = 4
    seed: int = 1
    begin: Micros = BEGIN

    def __post_init__(self) -> None:
        """Raise for invalid values."""
        if min(self.ads, self.keywords, self.sessions) < 1 or self.users < 2:
            msg = (
                "there must be at least 2 users, 1 ad, 1 keyword and 1 session a day; "
                f"got {self.users}, {self.ads}, {self.keywords}, {self.sessions}"
            )
            raise DefinitionError(msg)
        if self.bots is not None and not 0 <= self.bots < self.users:
            msg = f"bots must be fewer than the {self.users} users; got {self.bots}"
            raise DefinitionError(msg)

    def bot_users(self) -> Ints:
        """Return the users that are bots, ascending."""
        return np.sort(self._population()[1]) + 1

    def keywords_of_ads(self) -> Ints:
        """Return the keywords that raise clicks, a row for each ad from 1 on."""
        draws = self._draws(_AD_KEYWORD, np.arange(self.ads * KEYWORDS_OF_AN_AD))
        keywords = (draws * self.keywords).astype(np.int64) + 1
        return keywords.reshape(self.ads, KEYWORDS_OF_AN_AD)

    def between(self, start: Micros, end: Micros) -> pa.Table:
        """Return the events from `start` on and before `end`, in the order of time."""
        a_day = self.users * self.sessions
        first = max(0, (start - LONGEST - self.begin) * a_day // _DAY)
        last = max(first, -((self.begin - end) * a_day // _DAY))
        parts = [SCHEMA.empty_table()]
        for begin in range(first, last, _SESSIONS_AT_ONCE):
            events = self._events(np.arange(begin, min(begin + _SESSIONS_AT_ONCE, last)))
            times = events.column("time").cast(pa.int64()).to_numpy()
            parts.append(events.filter(pa.array((times >= start) & (times < end))))
        events = pa.concat_tables(parts)
        order = np.argsort(events.column("time").cast(pa.int64()).to_numpy(), kind="stable")
        return events.take(pa.array(order)).combine_chunks()

    def write(self, folder: Path, events: int, *, seconds: int) -> Iterator[EventFile]:
        """Write the first `events` events to Parquet files of `seconds` of event time each.

        Each file is written when the iterator reaches it.
        """
        if seconds < 1:
            msg = f"a file must hold at least 1 second of event time; got {seconds}"
            raise DefinitionError(msg)
        yield from write_files(folder, self._pieces(events, seconds * _SECOND), ["stream"])

    def _pieces(self, events: int, length: Micros) -> Iterator[tuple[pa.Table, Micros]]:
        """Yield the first events, an interval at a time, generated about an hour at once."""
        block = length * -(-_HOUR // length)
        start = self.begin
        while events > 0:
            made = self.between(start, start + block)
            times = made.column("time").cast(pa.int64()).to_numpy()
            ends = np.arange(start, start + block, length) + length
            cuts = np.searchsorted(times, ends).tolist()
            for first, cut, until in zip([0, *cuts[:-1]], cuts, ends.tolist(), strict=True):
                if events > 0:
                    piece = made.slice(first, min(cut - first, events))
                    events -= piece.num_rows
                    yield piece, until
            start += block

    def _draws(self, purpose: int, counters: Ints) -> Floats:
        """Return uniform draws from (0, 1), by their number."""
        return fractions(random_bits(self.seed, purpose, counters.astype(np.int64).view(np.uint64)))

    def _population(self) -> tuple[Floats, Ints]:
        bots = max(1, self.users // 2000) if self.bots is None else self.bots
        return _population(self.seed, self.users, bots)

    def _popular(self, purpose: int, counters: Ints, count: int) -> Ints:
        """Draw from the numbers 1 to `count`, low ones more often."""
        shares = np.arange(1, count + 1) ** -_KEYWORD_SKEW
        ends = np.cumsum(shares) / shares.sum()
        found = np.searchsorted(ends[:-1], self._draws(purpose, counters), side="right")
        return found.astype(np.int64) + 1

    def _sessions(self, session: Ints) -> tuple[Ints, npt.NDArray[np.bool_], Ints]:
        """Return the user of each session, whether it is a bot, and the number of steps."""
        ends, bots = self._population()
        is_bot = (self._draws(_IS_BOT, session) < _BOT_SESSIONS) & (len(bots) > 0)
        chance = self._draws(_WHO, session)
        user = np.searchsorted(ends[:-1], chance, side="right").astype(np.int64)
        user[is_bot] = bots[(chance[is_bot] * len(bots)).astype(np.int64)]
        more = (self._draws(_LENGTH, session) * (_STEPS - _FEWEST_STEPS + 1)).astype(np.int64)
        return user + 1, is_bot, np.where(is_bot, _STEPS, _FEWEST_STEPS + more)

    def _events(self, session: Ints) -> pa.Table:
        """Return the events of some sessions, a row of steps for each."""
        user, is_bot, steps = self._sessions(session)
        step = session[:, None] * _STEPS + np.arange(_STEPS)
        pause = _BRIEFEST_STEP + self._draws(_PAUSE, step) * (_LONGEST_STEP - _BRIEFEST_STEP)
        started = self.begin + session * _DAY // (self.users * self.sessions)
        time = started[:, None] + np.cumsum(pause.astype(np.int64), axis=1) - _BRIEFEST_STEP
        searches = self._draws(_KIND, step) < 0.5

        which = (self._draws(_WHICH, step) / _SEARCHES_OF_INTEREST * _INTERESTS).astype(np.int64)
        interest = self._popular(_INTEREST, user[:, None] * _INTERESTS + which, self.keywords)
        anything = self._popular(_KEYWORD, step, self.keywords)
        own = (which < _INTERESTS) & ~is_bot[:, None]
        keyword = np.where(own, interest, anything)
        ad = self._popular(_AD, step, self.ads)

        chance = np.full(step.shape, _CLICKS)
        chance[self._interested(searches, keyword, ad)] = _CLICKS_OF_INTERESTED
        chance[is_bot] = _CLICKS_OF_BOTS
        clicked = self._draws(_CLICKED, step) < chance
        hesitation = _SECOND + self._draws(_HESITATION, step) ** 8 * _LONGEST_HESITATION

        # an impression or a search, then perhaps a click
        there = np.arange(_STEPS) < steps[:, None]
        exists = np.stack([there, there & clicked & ~searches], axis=2)
        clicks = np.full(step.shape, CLICK)
        stream = np.stack([np.where(searches, SEARCH, IMPRESSION), clicks], axis=2)
        at = np.stack([time, time + hesitation.astype(np.int64)], axis=2)
        subject = np.stack([np.where(searches, keyword, ad), ad], axis=2)
        who = np.broadcast_to(user[:, None, None], exists.shape)
        columns = [
            pa.array(values[exists], field.type)
            for values, field in zip((at, stream, who, subject), SCHEMA, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    def _interested(
        self, searches: npt.NDArray[np.bool_], keyword: Ints, ad: Ints
    ) -> npt.NDArray[np.bool_]:
        """Return at which steps the user has already searched for a keyword of the ad."""
        wanted = self.keywords_of_ads()[ad - 1]
        searched = np.where(searches, keyword, 0)
        interested = np.zeros(ad.shape, dtype=bool)
        for earlier in range(_STEPS - 1):
            match = wanted[:, earlier + 1 :] == searched[:, earlier, None, None]
            interested[:, earlier + 1 :] |= match.any(axis=2)
        return interested


@lru_cache(maxsize=4)
def _population(seed: int, users: int, bots: int) -> tuple[Floats, Ints]:
    """Return the cumulative share of human sessions by user, and which users are bots, from 0."""
    counters = np.arange(users, dtype=np.uint64)
    weights = (-np.log(fractions(random_bits(seed, _ACTIVITY, counters)))) ** (1 / _SKEW)
    weights = np.minimum(weights, _BUSIEST_PERSON * weights.mean())
    chosen = np.argsort(random_bits(seed, _ORDER, counters), kind="stable")[:bots]
    weights[chosen] = 0.0
    return np.cumsum(weights) / weights.sum(), chosen.astype(np.int64)
