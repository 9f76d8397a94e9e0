"""INDEX: serve the waiting key whose waiting costs most, by a price that services are worth.

Idea: `service_price` says what serving a key now gains. Keys whose updates come at even gaps are
ranked by the phase of their updates, until they have missed many. Every waiting key is compared at
every service, in the order of waiting, so the longest wait wins among equals.

Invariants:
1. Keys with even gaps are served right after their updates if not all can be served
   (`test_keys_with_even_gaps_are_served_right_after_their_updates`).
2. With equal rates and weights, INDEX serves like IN-PLACE
   (`test_equal_keys_are_served_by_index_as_by_inplace`).

Cost: O(waiting keys) for each service.

References: decisions 14 and 21 have the argument, decision 53 says why no query uses it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bench.research.service_price import PRICE, even_wait, learn_price, learnt_price, worth_of
from icestream.core.arrays import Floats, Ints
from icestream.kernels.compile import kernel
from icestream.kernels.queue.order import HEAD, NEXT, SINCE, WAITING, ReaderArrays
from icestream.kernels.queue.queue import ARRIVED, COUNT, GAP, CellArrays

#: gaps are even below this; weight of the last gap in that estimate
EVEN = 0.1
EVEN_STEP = 1 / 8
#: missed updates from which a key with even gaps is ranked by its wait
MANY_MISSED = 12


class IndexArrays(NamedTuple):
    """What INDEX knows of each key besides its row in the queue."""

    #: words of the price of a service, those of `service_price`
    price: Floats
    weights: Floats
    #: how uneven the gaps between updates are; 0 for a clock
    uneven: Floats
    latest: Ints


@kernel
def note_update(index: IndexArrays, store: CellArrays, cell: int, arrived: int) -> None:
    """Learn from an update that is about to arrive; those that go back in time count nothing."""
    gap = arrived - store.cells[cell, ARRIVED]
    if store.cells[cell, COUNT] == 0:
        index.latest[cell] = arrived
    elif gap >= 0:
        mean = store.reals[cell, GAP]
        off = min(abs(gap - mean) / max(mean, 1.0), 1.0)
        index.uneven[cell] += EVEN_STEP * (off - index.uneven[cell])
        index.latest[cell] = arrived


@kernel
def index_wait(
    index: IndexArrays, store: CellArrays, reader: ReaderArrays, cell: int, now: int
) -> float:
    """Return the effective waiting time of a key."""
    since, gap = reader.keys[cell, SINCE], store.reals[cell, GAP]
    waited = float(max(now - since, 0))
    if index.uneven[cell] >= EVEN or index.weights[cell] != 1.0:
        return waited
    if int((index.latest[cell] - since) / max(gap, 1.0) + 0.5) >= MANY_MISSED:
        return waited
    left = max(gap - (now - index.latest[cell]), 0.0)
    return even_wait(waited, left, gap, index.price[PRICE])


@kernel
def best_key(index: IndexArrays, store: CellArrays, reader: ReaderArrays, now: int) -> int:
    """Return the waiting key whose service gains most, -1 if none waits."""
    price = learnt_price(index.price)
    index.price[PRICE] = price
    best, most = -1, -np.inf
    at = reader.facts[HEAD]
    while at:
        cell = at - 1
        wait = index_wait(index, store, reader, cell, now)
        worth = worth_of(wait, store.reals[cell, GAP], index.weights[cell], price)
        if worth > most:
            best, most = cell, worth
        at = reader.links[cell, NEXT]
    return best


@kernel
def note_service(
    index: IndexArrays, store: CellArrays, reader: ReaderArrays, cell: int, now: int
) -> None:
    """Learn the price from a service that begins now."""
    waited = int(index_wait(index, store, reader, cell, now))
    gap, others = store.reals[cell, GAP], reader.facts[WAITING] - 1
    learn_price(index.price, waited, gap, index.weights[cell], now, others)
