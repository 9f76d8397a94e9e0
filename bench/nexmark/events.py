"""Nexmark's events: persons who open auctions and bid in them.

Idea: event number i determines its kind and its time; all other choices are drawn for all events of
a kind at once. Proportions, skew and texts are those of the public suite: of 50 events one is a
person, three are auctions and 46 are bids; half of the bids go to one auction of the newest
hundred, three quarters come from one bidder of the newest hundred persons, three quarters of the
auctions belong to one such seller, and half of the bids come through four channels.

Invariants:
1. The same seed gives the same events (`test_events_are_a_function_of_the_seed`).
2. Proportions and skew are as above (`test_proportions_and_skew_are_those_of_the_suite`).

Cost: O(events), about two million events a second on one core.

References: P. Tucker, K. Tufte, V. Papadimos, D. Maier. NEXMark: a benchmark for queries over data
streams, 2002; the generator of github.com/nexmark/nexmark, whose constants these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

#: events of each kind in a round, in the order in which they come
PERSONS, AUCTIONS, BIDS = 1, 3, 46
ROUND = PERSONS + AUCTIONS + BIDS
FIRST_ID = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
#: one of so many persons or auctions is hot
HOT = 100
#: auctions that receive bids at a time, persons who act, and ids that may be used ahead of time
IN_FLIGHT, ACTIVE, LEAD = 100, 1000, 10
CHANNELS = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
#: average sizes of events in bytes
PERSON_SIZE, AUCTION_SIZE, BID_SIZE = 200, 500, 100

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle",
    "Kent", "Cheyenne",
)  # fmt: skip
FIRST_NAMES = (
    "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter",
)  # fmt: skip
LAST_NAMES = (
    "Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris",
)  # fmt: skip


@dataclass(frozen=True)
class Nexmark:
    """The events with numbers from `first` up to, but not including, `first + count`."""

    count: int
    seed: int = 1
    #: events a second
    rate: int = 10_000
    first: int = 0
    #: microseconds since 1970
    start: int = 1_700_000_000_000_000

    def tables(self, names: Sequence[str] = ("person", "auction", "bid")) -> dict[str, pa.Table]:
        """Return the tables of persons, auctions and bids, each in the order of time."""
        numbers = np.arange(self.first, self.first + self.count, dtype=np.int64)
        place = numbers % ROUND
        is_person, is_bid = place < PERSONS, place >= PERSONS + AUCTIONS
        chosen = {"person": is_person, "auction": ~is_person & ~is_bid, "bid": is_bid}
        made = {"person": self._persons, "auction": self._auctions, "bid": self._bids}
        return {name: made[name](numbers[chosen[name]]) for name in names}

    def _rng(self, kind: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, kind, self.first])

    def _times(self, numbers: Ints) -> Ints:
        """Return the times of events, in whole milliseconds."""
        return self.start + numbers * 1000 // self.rate * 1000

    def _persons(self, numbers: Ints) -> pa.Table:
        rng, count = self._rng(0), len(numbers)
        cards = rng.integers(0, 10_000, (4, count))
        return pa.table(
            {
                "id": last_person(numbers) + FIRST_ID,
                "name": _joined(_chosen(rng, FIRST_NAMES, count), _chosen(rng, LAST_NAMES, count)),
                "emailAddress": [
                    f"{a}@{b}.com"
                    for a, b in zip(
                        _words(rng, count, 3, 7).to_pylist(),
                        _words(rng, count, 3, 5).to_pylist(),
                        strict=True,
                    )
                ],
                "creditCard": [f"{a:04d} {b:04d} {c:04d} {d:04d}" for a, b, c, d in cards.T],
                "city": _chosen(rng, CITIES, count),
                "state": _chosen(rng, STATES, count),
                "dateTime": _stamps(self._times(numbers)),
                "extra": _extra(rng, count, PERSON_SIZE - 70),
            }
        )

    def _auctions(self, numbers: Ints) -> pa.Table:
        rng, count = self._rng(1), len(numbers)
        newest = last_person(numbers)
        seller = np.where(
            rng.integers(0, 4, count) > 0, newest // HOT * HOT, _active_person(rng, newest)
        )
        times = self._times(numbers)
        # an auction is open, on average, until a hundred more were opened
        horizon = IN_FLIGHT * ROUND // AUCTIONS * 1000 // self.rate
        length = 1 + rng.integers(0, max(2 * horizon, 1), count)
        first_bid = _prices(rng, count)
        return pa.table(
            {
                "id": last_auction(numbers) + FIRST_ID,
                "itemName": _words(rng, count, 3, 20),
                "description": _words(rng, count, 3, 100),
                "initialBid": first_bid,
                "reserve": first_bid + _prices(rng, count),
                "dateTime": _stamps(times),
                "expires": _stamps(times + length * 1000),
                "seller": seller + FIRST_ID,
                "category": FIRST_CATEGORY + rng.integers(0, CATEGORIES, count),
                "extra": _extra(rng, count, AUCTION_SIZE - 110),
            }
        )

    def _bids(self, numbers: Ints) -> pa.Table:
        rng, count = self._rng(2), len(numbers)
        newest_auction, newest_person = last_auction(numbers), last_person(numbers)
        oldest = np.maximum(newest_auction - IN_FLIGHT, 0)
        any_auction = oldest + rng.integers(0, newest_auction - oldest + 1 + LEAD)
        is_hot = rng.integers(0, 2, count) > 0
        auction = np.where(is_hot, newest_auction // HOT * HOT, any_auction)
        bidder = np.where(
            rng.integers(0, 4, count) > 0,
            newest_person // HOT * HOT + 1,
            _active_person(rng, newest_person),
        )
        names, urls = _channels(self.seed)
        channel = np.where(
            rng.integers(0, 2, count) > 0,
            rng.integers(0, len(HOT_CHANNELS), count),
            len(HOT_CHANNELS) + rng.integers(0, CHANNELS, count),
        )
        return pa.table(
            {
                "auction": auction + FIRST_ID,
                "bidder": bidder + FIRST_ID,
                "price": _prices(rng, count),
                "channel": names.take(pa.array(channel)),
                "url": urls.take(pa.array(channel)),
                "dateTime": _stamps(self._times(numbers)),
                "extra": _extra(rng, count, BID_SIZE - 32),
            }
        )


def last_person(numbers: Ints) -> Ints:
    """Return the newest person, counted from 0, at each event."""
    return numbers // ROUND * PERSONS + np.minimum(numbers % ROUND, PERSONS - 1)


def last_auction(numbers: Ints) -> Ints:
    """Return the newest auction, counted from 0, at each event; -1 before the first."""
    place = np.clip(numbers % ROUND - PERSONS, -1, AUCTIONS - 1)
    return numbers // ROUND * AUCTIONS + place


def _active_person(rng: np.random.Generator, newest: Ints) -> Ints:
    """Return a person for each event: one of the last thousand, or one of the next ten."""
    active = np.minimum(newest + 1, ACTIVE)
    return newest + 1 - active + rng.integers(0, active + LEAD)


def _prices(rng: np.random.Generator, count: int) -> Ints:
    return np.round(10.0 ** (rng.random(count) * 6) * 100).astype(np.int64)


def _stamps(micros: Ints) -> pa.Array:
    return pa.array(micros).cast(pa.timestamp("us", "UTC"))


def _chosen(rng: np.random.Generator, values: tuple[str, ...], count: int) -> pa.Array:
    return pa.array(values).take(pa.array(rng.integers(0, len(values), count)))


def _joined(one: pa.Array, other: pa.Array) -> list[str]:
    return [f"{a} {b}" for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True)]


def _words(rng: np.random.Generator, count: int, least: int, most: int) -> pa.Array:
    """Return random texts with lengths from `least` up to, but not including, `most`."""
    return _letters(rng, rng.integers(least, most, count))


def _extra(rng: np.random.Generator, count: int, size: int) -> pa.Array:
    """Return random texts that fill events up to their size on average."""
    return _letters(rng, rng.integers(size - size // 5, size + size // 5, count))


def _letters(rng: np.random.Generator, lengths: Ints) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    letters = rng.integers(ord("a"), ord("z") + 1, int(offsets[-1]), dtype=np.uint8)
    return pa.StringArray.from_buffers(
        len(lengths), pa.py_buffer(offsets.tobytes()), pa.py_buffer(letters.tobytes())
    )


def _channels(seed: int) -> tuple[pa.Array, pa.Array]:
    """Return the names and addresses of all channels, the hot ones first."""
    rng = np.random.default_rng([seed, 3])
    count = len(HOT_CHANNELS) + CHANNELS
    parts = [_words(rng, count, 3, 5).to_pylist() for _ in range(3)]
    with_id = rng.integers(0, 10, count) > 0
    urls = []
    for place, (a, b, c) in enumerate(zip(*parts, strict=True)):
        url = f"https://www.nexmark.com/{a}/{b}/{c}/item.htm?query=1"
        number = place - len(HOT_CHANNELS)
        urls.append(f"{url}&channel_id={number}" if number >= 0 and with_id[place] else url)
    names = [*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))]
    return pa.array(names), pa.array(urls)


def side_input(count: int = 10_000) -> pa.Table:
    """Return the static table of the join with a table: a key and a text."""
    return pa.table({"key": np.arange(count), "value": [f"{key:08d}" for key in range(count)]})
