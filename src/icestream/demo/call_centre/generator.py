"""The stream `AgentInteractions`, as Arrow batches or as Parquet files.

Idea: row `n` is a pure function of the seed and of `n`, so the stream can be made in pieces of any
size, in any order, with the same rows. Requests run in *lanes*: event `n` is the next step in lane
`n % lanes`, and the requests of a lane follow each other in a fixed pattern of lengths. Attributes
of a request are drawn once, by its number; attributes of a step are drawn by `n`.

Invariants:
1. Equal seeds give equal rows, in any pieces (`test_oracle_rows_do_not_depend_on_the_pieces`).
2. An event arrives less than `disorder` behind the latest event before it
   (`test_bounded_disorder_stays_below_its_bound`).
3. Event times advance by `rate` events per second (`test_oracle_the_rate_is_what_was_asked_for`).
4. The columns have the distributions in `distributions.STREAM` (tests named there).

Cost: less than half a microsecond per row on one core, files included; memory for one file.

References: Shared SlideM, appendix A.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.demo.call_centre.distributions import (
    ANSWERED_ON_SITE,
    KEYS,
    REQUEST_SECONDS,
    SHIFT,
    STEPS_OF_REQUESTS,
    TIMES,
    service_factors,
)
from icestream.demo.call_centre.schema import ARROW_SCHEMA
from icestream.demo.randomness import Words, fractions, random_bits
from icestream.demo.replay import EventFile, write_files

_SECOND: Micros = 1_000_000
_DAY: Micros = 86_400 * _SECOND
_QUIETEST_HOUR = 4
#: Thursday, 1 January 2026, 00:00 UTC
BEGIN: Micros = 1_767_225_600 * _SECOND

#: rows made at once; their columns fit into the processor's cache
_BLOCK = 1 << 16
#: with more requests at the same time, requests would cost more than their steps
_MOST_LANES = 4096

_PATTERN = sum(STEPS_OF_REQUESTS)
_FIRST_STEP = np.concatenate([[0], np.cumsum(STEPS_OF_REQUESTS)[:-1]]).astype(np.int64)
_REQUEST_OF_STEP = np.repeat(np.arange(len(STEPS_OF_REQUESTS)), STEPS_OF_REQUESTS)
_LEG_OF_STEP = np.arange(_PATTERN) - _FIRST_STEP[_REQUEST_OF_STEP] + 1
_IS_LAST_STEP = np.array(STEPS_OF_REQUESTS)[_REQUEST_OF_STEP] == _LEG_OF_STEP

_ANY_16_BITS = np.arange(2**16)
_OUTCOME = np.searchsorted(np.cumsum([0.78, 0.12, 0.06, 0.03]) * 2**16, _ANY_16_BITS, side="right")
_HOLDS = np.searchsorted(np.cumsum([0.80, 0.15, 0.04]) * 2**16, _ANY_16_BITS, side="right")


@dataclass(frozen=True, slots=True)
class Requests:
    """The attributes that the steps of one request share, one entry per request."""

    #: microseconds since the epoch, before the first step
    start: Ints
    columns: dict[str, npt.NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class AgentInteractions:
    """The stream of everything that happens in the call centres, step by step."""

    #: events per second of event time
    rate: int = 1000
    seed: int = 1
    #: an event lags less than this behind the latest event before it
    disorder: Micros = 2 * _SECOND
    #: 0 keeps the rate fixed; 0.8 lets it fall to 20 % at night and rise to 180 % by day
    swing: float = 0.0
    begin: Micros = BEGIN

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        if self.rate < 1:
            msg = f"rate must be at least 1 event per second; got {self.rate}"
            raise DefinitionError(msg)
        if self.disorder < 0:
            msg = f"disorder must not be negative; got {self.disorder} microseconds"
            raise DefinitionError(msg)
        if not 0 <= self.swing < 1:
            msg = f"swing must be from 0 (fixed rate) to below 1; got {self.swing}"
            raise DefinitionError(msg)

    @property
    def lanes(self) -> int:
        """Return the number of requests that are in progress at any moment."""
        steps_of_request = _PATTERN / len(STEPS_OF_REQUESTS)
        return min(max(1, round(self.rate * REQUEST_SECONDS / steps_of_request)), _MOST_LANES)

    def time_of(self, events: Ints) -> Ints:
        """Return the latest event time that each event can have, in microseconds."""
        if self.swing == 0.0:
            return events * _SECOND // self.rate + self.begin
        day, place = np.divmod(events, self.rate * 86_400)
        hours = np.linspace(0, 24, 24 * 60 + 1)
        turn = 2 * np.pi / 24
        lull = np.sin(turn * (hours - _QUIETEST_HOUR)) + np.sin(turn * _QUIETEST_HOUR)
        done = hours / 24 - self.swing / (2 * np.pi) * lull
        hour = np.interp(place / (self.rate * 86_400), done, hours)
        return self.begin + day * _DAY + (hour * 3600 * _SECOND).astype(np.int64)

    def batch(self, first: int, count: int) -> pa.RecordBatch:
        """Return the events number `first` to `first + count`, in order of arrival."""
        events = np.arange(first, first + count, dtype=np.int64)
        lane = events % self.lanes
        cycle, step = np.divmod(events // self.lanes + self._lane_offsets()[lane], _PATTERN)
        turn = cycle * len(STEPS_OF_REQUESTS) + _REQUEST_OF_STEP[step]
        lowest, highest = (int(turn.min()), int(turn.max())) if count else (0, 0)
        requests = self._requests(lowest, highest + 1)
        request = (turn - lowest) * self.lanes + lane

        columns: dict[str, npt.NDArray[Any]] = {
            name: values[request] for name, values in requests.columns.items()
        }
        counters = events.view(np.uint64)
        delay = (random_bits(self.seed, 1, counters) >> np.uint64(32)) * np.uint64(self.disorder)
        delay >>= np.uint64(32)
        columns["timestamp"] = self.time_of(events) - delay.view(np.int64)
        columns["start"] = requests.start[request]
        columns["interactionLegId"] = _LEG_OF_STEP[step]
        columns["finalSegment"] = _IS_LAST_STEP[step]
        self._add_times(columns, counters)
        chance = random_bits(self.seed, 2, counters).view(np.uint16).reshape(-1, 4)
        columns["agentReleased"] = columns["finalSegment"] & (chance[:, 0] < 2**15)
        columns["mediaOutcome"] = _OUTCOME[chance[:, 1]]
        columns["held"] = _HOLDS[chance[:, 2]]
        columns["help"] = columns["helpTime"] > 0
        share = chance[:, 3].astype(np.int64) * columns["availableTime"]
        columns["availableTimeByService"] = share >> 16
        arrays = [
            pa.array(columns[field.name]).cast(field.type, safe=False) for field in ARROW_SCHEMA
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)

    def table(self, first: int, count: int) -> pa.Table:
        """Return the same events as `batch`, in pieces that are fast to make."""
        end = first + count
        pieces = [
            self.batch(begin, min(_BLOCK, end - begin)) for begin in range(first, end, _BLOCK)
        ]
        return pa.Table.from_batches(pieces, schema=ARROW_SCHEMA)

    def write(self, folder: Path, events: int, *, seconds: int) -> Iterator[EventFile]:
        """Write the first `events` events to Parquet files of `seconds` of event time each.

        Each file is written when the iterator reaches it. With `swing`, `seconds` is a mean.
        """
        if seconds < 1:
            msg = f"a file must hold at least 1 second of event time; got {seconds}"
            raise DefinitionError(msg)
        dictionary = [name for name in ARROW_SCHEMA.names if name not in {"timestamp", "start"}]
        yield from write_files(folder, self._pieces(events, seconds * self.rate), dictionary)

    def _pieces(self, events: int, most: int) -> Iterator[tuple[pa.Table, Micros]]:
        """Yield the first events, `most` at a time, each with the event time it reaches."""
        for first in range(0, events, most):
            count = min(most, events - first)
            until = int(self.time_of(np.array([first + count]))[0])
            yield self.table(first, count), until

    def _lane_offsets(self) -> Ints:
        """Return the step at which each lane begins, so that lanes are not synchronised."""
        lanes = np.arange(self.lanes, dtype=np.uint64)
        return (random_bits(self.seed, 3, lanes) % np.uint64(_PATTERN)).astype(np.int64)

    def _requests(self, lowest: int, highest: int) -> Requests:
        """Return the requests number `lowest` to `highest` of each lane."""
        lane = np.tile(np.arange(self.lanes), highest - lowest)
        turn = np.repeat(np.arange(lowest, highest), self.lanes)
        number = turn * self.lanes + lane
        cycle, request = np.divmod(turn, len(STEPS_OF_REQUESTS))
        place = cycle * _PATTERN + _FIRST_STEP[request] - self._lane_offsets()[lane]
        begin = self.time_of(place * self.lanes + lane)
        columns = {
            name: self._draw(name, purpose, number)
            for purpose, name in enumerate(("instance", "serviceId", "mediaId", "direction"), 10)
        }
        columns["sessionId"] = (number % (2**31 - 1) + 1).astype(np.int32)
        agents, sites = KEYS["agentId"].cardinality, KEYS["agentSite"].cardinality
        newest = (begin - self.begin) % _DAY * agents // _DAY
        chosen = fractions(random_bits(self.seed, 20, number.view(np.uint64))) * (agents * SHIFT)
        agent = (newest - chosen.astype(np.int64)) % agents
        columns["agentId"] = (agent + 1).astype(np.int32)
        columns["agentSite"] = (agent % sites + 1).astype(np.int32)
        at_home = fractions(random_bits(self.seed, 21, number.view(np.uint64))) < ANSWERED_ON_SITE
        elsewhere = self._draw("callSite", 22, number)
        columns["callSite"] = np.where(at_home, columns["agentSite"], elsewhere)
        return Requests(begin - self.disorder, columns)

    def _draw(self, name: str, purpose: int, number: Ints) -> npt.NDArray[np.int32]:
        """Draw the value of a key for each request, by the shares of the key."""
        key = KEYS[name]
        below = np.cumsum(key.shares())[:-1]
        chance = fractions(random_bits(self.seed, purpose, number.view(np.uint64)))
        return (np.searchsorted(below, chance, side="right") + 1).astype(np.int32)

    def _add_times(self, columns: dict[str, npt.NDArray[Any]], counters: Words) -> None:
        """Draw the aggregated fields of each step; two of them share 64 random bits."""
        service = columns["serviceId"].astype(np.int64) - 1
        for place, measure in enumerate(TIMES.values()):
            if place % 2 == 0:
                bits = random_bits(self.seed, 30 + place, counters).view(np.uint32).reshape(-1, 2)
            chance = fractions(bits[:, place % 2])
            chance /= 1 - measure.zeros
            np.log(chance, out=chance)
            np.negative(chance, out=chance)
            np.maximum(chance, 0.0, out=chance)
            seconds = chance ** (1 / measure.shape)
            seconds *= measure.scale
            if measure.by_service:
                seconds *= service_factors(measure)[service]
            columns[measure.name] = seconds.astype(np.int32)
