"""Staleness of results: exact averages over keys and time, and their distribution.

Idea: a key's staleness is the age of its oldest pending update: for the *queue* until the key is
served, for the *application* until the result is delivered. Over time it is a series of ramps. The
kernels add up a ramp whenever a key's pending update changes; a report adds the ramps that are
still open at its time.

Invariants:
1. Averages and largest values are exact
   (`test_oracle_staleness_is_the_integral_of_the_definition`).
2. Quantiles over keys and time are within 1/32 of exact
   (`test_parity_quantiles_beside_a_fine_sampling`).

Cost: a report visits every key.

Limits: the application's staleness needs reports of deliveries; without them, all is pending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from icestream.core.arrays import Floats, Ints
from icestream.core.times import Micros
from icestream.kernels.queue import staleness as k
from icestream.kernels.queue.order import APPLICATION, LARGEST, QUEUE, STALENESS_WORDS
from icestream.kernels.queue.order import ReaderArrays as Arrays


@dataclass(frozen=True)
class Staleness:
    """Microseconds that results were behind, over all keys and the measured time."""

    average: float
    p50: float
    p99: float
    most: float


@dataclass(frozen=True)
class StalenessReport:
    """Both kinds of staleness, from `began` to `now`."""

    queue: Staleness
    application: Staleness
    keys: int
    began: Micros
    now: Micros


def report(reader: Arrays, cells: Ints, began: Micros, now: Micros) -> StalenessReport:
    """Measure the staleness of some keys, which must all have been updated."""
    return StalenessReport(
        _overall(reader, reader.queue_profile, cells, QUEUE, (began, now)),
        _overall(reader, reader.application_profile, cells, APPLICATION, (began, now)),
        len(cells),
        began,
        now,
    )


def by_key(reader: Arrays, cells: Ints, began: Micros, now: Micros) -> tuple[Floats, Floats]:
    """Measure the average staleness of each of some keys, of the queue and of the application."""
    span = max(now - began, 1)
    queue, application = (
        ramps(reader.keys[cells], kind, now)[0] / span for kind in (QUEUE, APPLICATION)
    )
    return queue, application


def ramps(keys: Ints, kind: int, now: Micros) -> tuple[Floats, Floats, Floats]:
    """Return the area of each key's staleness, and the ends of the ramps that are open.

    Args:
        keys: words of the keys for a reader.
        kind: APPLICATION or QUEUE.
        now: time up to which open ramps count.
    """
    totals, pending = STALENESS_WORDS[kind]
    opened = keys[:, pending]
    begin = np.maximum(keys[:, totals + k.FROM], opened)
    is_open = (opened != k.NONE) & (now > begin)
    last = np.where(is_open, now - np.where(is_open, opened, 0), 0)
    first = np.where(is_open, begin - np.where(is_open, opened, 0), 0)
    ends, begins = last.astype(np.float64), first.astype(np.float64)
    areas = keys.view(np.float64)[:, totals + k.AREA] + 0.5 * (ends - begins) * (ends + begins)
    return areas, begins[is_open], ends[is_open]


def add_ramps(profile: Floats, begins: Floats, ends: Floats) -> None:
    """Add ramps to a profile of staleness."""
    for values, sign in ((ends, 1.0), (begins, -1.0)):
        places = bins_of(values)
        np.add.at(profile[:, 0], places, sign)
        np.add.at(profile[:, 1], places, sign * values)


def _overall(
    reader: Arrays, profile: Floats, cells: Ints, kind: int, times: tuple[Micros, Micros]
) -> Staleness:
    began, now = times
    span = now - began
    if not len(cells) or span <= 0:
        return Staleness(0.0, 0.0, 0.0, 0.0)
    areas, begins, ends = ramps(reader.keys[cells], kind, now)
    whole = profile.copy()
    add_ramps(whole, begins, ends)
    total = float(len(cells)) * span
    return Staleness(
        average=float(areas.sum()) / total,
        p50=quantile(whole, total, 0.5),
        p99=quantile(whole, total, 0.99),
        most=max(float(reader.facts[LARGEST + kind]), ends.max(initial=0.0)),
    )


def quantile(profile: Floats, total: float, part: float) -> float:
    """Return the value that staleness does not exceed for a fraction of all time.

    Args:
        profile: ends of ramps by bin, `kernels.queue.staleness` says how.
        total: time of all keys together, that without staleness too.
        part: between 0 and 1.
    """
    edges = np.concatenate([[0.0], k.bin_edges()])
    beyond = np.concatenate([[profile[:, 0].sum()], profile[::-1, 0].cumsum()[::-1][1:]])
    below = np.concatenate([[0.0], profile[:-1, 1].cumsum()])
    fresh = total - float(profile[:, 1].sum())
    spent = fresh + below + edges * beyond
    spent[0] = fresh
    wanted = part * total
    if fresh >= wanted:
        return 0.0
    at = int(np.searchsorted(np.maximum.accumulate(spent), wanted))
    if at >= len(edges):
        return float(edges[-1])
    step = spent[at] - spent[at - 1]
    return float(edges[at - 1] + (edges[at] - edges[at - 1]) * (wanted - spent[at - 1]) / step)


def bins_of(values: Floats) -> Ints:
    """Return the bins of many values of staleness, as `bin_of` does for one."""
    bits = np.maximum(values, 1.0).view(np.int64) >> (52 - k.BIN_BITS)
    bins = np.minimum(bits - (1023 << k.BIN_BITS) + 1, k.BINS - 1)
    return np.where(values < 1.0, 0, bins)


def middles() -> Floats:
    """Return the staleness in the middle of every bin, off by less than 1/32; 0 for the first."""
    edges = k.bin_edges()
    return np.concatenate([[0.0], (edges[:-1] + edges[1:]) / 2, edges[-1:]])


def bins_of_areas(areas: Floats) -> Ints:
    """Return, for each area, the bin of the staleness that a ramp from 0 reaches with it."""
    return bins_of(np.sqrt(2 * areas))


def averages_of_bins(spread: Ints, span: Micros) -> Mapping[int, int]:
    """Return the number of keys by bin of their average staleness.

    Args:
        spread: number of keys in each of `bins_of_areas`.
        span: microseconds over which the areas accumulated.
    """
    found = np.zeros(k.BINS, dtype=np.int64)
    busy = np.flatnonzero(spread)
    if span > 0:
        np.add.at(found, bins_of(middles()[busy] ** 2 / 2 / span), spread[busy])
    return {place: int(found[place]) for place in np.flatnonzero(found).tolist()}
