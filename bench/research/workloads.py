"""Streams of updates to simulate, generated from a seed or read from a file.

Idea: a workload is two columns, times in microseconds and numbers of keys, in the order of time.
Most patterns split one total rate among keys by *shares* (`equal`, `zipf`, `slow_and_fast`); the
pattern determines how the times of the updates are spread: in turn, one draw per tick, Poisson,
each key on a clock of its own, in bursts, with a drift, or as quotes of a market. `load(cost)` is
the time needed to serve every update, relative to the duration of the stream.

Invariants:
1. The same arguments give the same updates (`test_a_workload_is_its_seed`).
2. Times never decrease, and every key's rate is its share of the total
   (`test_updates_are_in_order_and_follow_their_shares`).

Limits: gaps are rounded to whole microseconds; choose costs of a thousand or more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from icestream.core.arrays import Floats, Ints
from icestream.core.errors import InputError

SECOND = 1_000_000
MINUTE = 60 * SECOND


@dataclass(frozen=True)
class UpdateWorkload:
    """Updates of keys over time."""

    #: arrival of each update, microseconds, never decreasing
    times: Ints
    #: key of each update, from 0
    keys: Ints
    #: number of keys, updated or not
    key_count: int
    #: when the stream ends, microseconds; no update is later
    until: int

    def __post_init__(self) -> None:
        """Check the assumptions of every simulation."""
        if len(self.times) != len(self.keys):
            msg = f"{len(self.times)} times but {len(self.keys)} keys; give one of each per update"
            raise InputError(msg)
        if len(self.times) and (np.diff(self.times).min(initial=0) < 0 or self.times[0] < 0):
            msg = "updates must be sorted by time, from 0 on"
            raise InputError(msg)
        if len(self.times) and self.times[-1] > self.until:
            msg = f"the stream ends at {self.until} but its last update is at {self.times[-1]}"
            raise InputError(msg)
        if len(self.keys) and not 0 <= self.keys.min() <= self.keys.max() < self.key_count:
            msg = f"keys are numbered from 0 to {self.key_count - 1}"
            raise InputError(msg)

    def __len__(self) -> int:
        """Count the updates."""
        return len(self.times)

    @cached_property
    def rates(self) -> Floats:
        """Updates per microsecond of each key, over the whole stream."""
        counts = np.bincount(self.keys, minlength=self.key_count)
        return np.asarray(counts / max(self.until, 1), dtype=np.float64)

    def load(self, cost: int) -> float:
        """Return the time needed to serve every update, relative to the stream's duration."""
        return len(self) * cost / self.until


# -- shares of a total rate ------------------------------------------------------------------


def equal(keys: int) -> Floats:
    """Every key is updated equally often."""
    return np.full(keys, 1.0 / keys)


def zipf(keys: int, theta: float) -> Floats:
    """Key r is updated 1 / (r + 1)**theta as often as key 0."""
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -theta
    return np.asarray(weights / weights.sum())


def slow_and_fast(keys: int, slow: int, ratio: float) -> Floats:
    """The last `slow` keys are updated `ratio` times less often than the others."""
    weights = np.ones(keys)
    weights[keys - slow :] = 1.0 / ratio
    return np.asarray(weights / weights.sum())


# -- times -----------------------------------------------------------------------------------


def in_turn(keys: int, updates: int, gap: float) -> UpdateWorkload:
    """Keys are updated one after the other, an update every `gap` microseconds."""
    number = np.arange(updates)
    times = np.rint((number + 1) * gap).astype(np.int64)
    return UpdateWorkload(times, number % keys, keys, _end(updates, gap))


def one_per_tick(shares: Floats, updates: int, gap: float, seed: int) -> UpdateWorkload:
    """Every `gap` microseconds a key is drawn by its share: Bernoulli updates."""
    dice = np.random.default_rng(seed)
    times = np.rint(np.arange(1, updates + 1) * gap).astype(np.int64)
    return UpdateWorkload(times, _drawn(shares, updates, dice), len(shares), _end(updates, gap))


def poisson(shares: Floats, updates: int, gap: float, seed: int) -> UpdateWorkload:
    """Independent Poisson updates of every key, `gap` microseconds apart on average in all."""
    dice = np.random.default_rng(seed)
    times = np.rint(np.cumsum(dice.exponential(gap, updates))).astype(np.int64)
    return UpdateWorkload(times, _drawn(shares, updates, dice), len(shares), int(times[-1]))


def clocks(
    shares: Floats, updates: int, gap: float, seed: int, *, spread: float = 0.0
) -> UpdateWorkload:
    """Every key is updated by a clock of its own, from a random phase on.

    `spread` is the standard deviation of the logarithm of a gap: 0 ticks evenly, 1 is about as
    uneven as Poisson, 2 comes in clusters with long pauses.
    """
    dice = np.random.default_rng(seed)
    until = _end(updates, gap)
    periods = gap / shares
    times, keys = [], []
    for key, period in enumerate(periods):
        most = int(until / period * (1.0 + 2.0 * spread)) + 16 * (1 + int(4 * spread))
        gaps = period * np.exp(dice.normal(-spread * spread / 2, spread, most))
        at = np.cumsum(gaps) - gaps[0] * dice.random()
        times.append(at[at <= until])
        keys.append(np.full(len(times[-1]), key))
    return _merged(times, keys, len(shares), until)


def bursts(
    shares: Floats, updates: int, gap: float, seed: int, *, length: int = 50, share: float = 0.5
) -> UpdateWorkload:
    """Poisson updates, a `share` of them in bursts of about `length` at one time."""
    dice = np.random.default_rng(seed)
    until = _end(updates, gap)
    sudden = int(updates * share)
    starts = dice.random(max(1, sudden // length)) * until
    times = [
        dice.random(updates - sudden) * until,
        np.repeat(starts, -(-sudden // len(starts)))[:sudden],
    ]
    keys = [_drawn(shares, len(part), dice) for part in times]
    return _merged(times, keys, len(shares), until)


def slow_bursts(
    shares: Floats, updates: int, gap: float, seed: int, *, slow: int
) -> UpdateWorkload:
    """The last `slow` keys are all updated at the same time, the others are Poisson."""
    dice = np.random.default_rng(seed)
    until = _end(updates, gap)
    fast = len(shares) - slow
    rounds = max(1, int(updates * shares[fast:].sum() / max(slow, 1)))
    starts = dice.random(rounds) * until
    steady = int(updates * shares[:fast].sum())
    times = [dice.random(steady) * until, np.repeat(starts, slow)]
    keys = [
        _drawn(shares[:fast] / shares[:fast].sum(), steady, dice),
        np.tile(np.arange(fast, len(shares)), rounds),
    ]
    return _merged(times, keys, len(shares), until)


def drifting(
    shares: Floats, updates: int, gap: float, seed: int, *, turns: float = 2.0
) -> UpdateWorkload:
    """Poisson updates whose shares shift from key to key, `turns` times around."""
    still = poisson(shares, updates, gap, seed)
    moved = (still.times / still.until * turns * len(shares)).astype(np.int64)
    return UpdateWorkload(still.times, (still.keys + moved) % len(shares), len(shares), still.until)


def quotes(
    keys: int, updates: int, gap: float, seed: int, *, minutes: int = 240, spread: float = 1.5
) -> UpdateWorkload:
    """Quotes of an exchange: a very uneven market that is busiest at opening and closing.

    Activity of keys is log-normal; a minute's activity of a key is its own, times that of the
    whole market, which is high at both ends of the day; inside a minute, times are random.
    """
    dice = np.random.default_rng(seed)
    until = _end(updates, gap)
    activity = np.exp(dice.normal(0.0, spread, keys))
    place = np.linspace(-1, 1, minutes)
    market = (1 + 2 * place**4) * np.exp(dice.normal(0.0, 0.3, minutes))
    own = np.exp(dice.normal(0.0, 0.7, (minutes, keys)))
    expected = market[:, None] * activity * own
    counts = dice.poisson(expected * (updates / expected.sum()))
    minute, key = np.divmod(np.repeat(np.arange(counts.size), counts.ravel()), keys)
    times = (minute + dice.random(len(minute))) * (until / minutes)
    return _merged([times], [key], keys, until)


#: patterns that take (shares, updates, gap, seed)
PATTERNS: Mapping[str, Callable[[Floats, int, float, int], UpdateWorkload]] = {
    "one per tick": one_per_tick,
    "poisson": poisson,
    "clocks": clocks,
    "uneven clocks": lambda shares, updates, gap, seed: clocks(
        shares, updates, gap, seed, spread=1.5
    ),
    "bursts": bursts,
    "drifting": drifting,
}


# -- files -----------------------------------------------------------------------------------


def read_ticks(
    path: str, *, time: str, key: str, unit: str = "ms", spread: int = 0, busiest: bool = True
) -> UpdateWorkload:
    """Read updates from a CSV file (`.gz` too) with a header.

    Args:
        path: the file.
        time: column of times, whole numbers since any epoch, in the order of time.
        key: column of keys, of any type.
        unit: unit of the times: "s", "ms" or "us".
        spread: if times are rounded down to a grid, its width in microseconds: updates of one
            time are spread evenly over it, in the order of the file. 0 leaves them together.
        busiest: use only the day with the most updates, so that nights do not count.
    """
    wanted = {time: pa.int64(), key: pa.string()}
    options = pcsv.ConvertOptions(include_columns=list(wanted), column_types=wanted)
    try:
        table = pcsv.read_csv(path, convert_options=options)
    except (pa.ArrowInvalid, KeyError) as error:
        msg = f"{path} cannot be read as updates: {error}; give its columns of times and keys"
        raise InputError(msg) from error
    scale = {"s": SECOND, "ms": 1_000, "us": 1}.get(unit)
    if scale is None or not table.num_rows:
        msg = (
            f"{path}: the file must have rows, and the unit must be 's', 'ms' or 'us', not {unit!r}"
        )
        raise InputError(msg)
    times = table.column(time).to_numpy() * scale
    names = table.column(key).combine_chunks()
    if busiest:
        days = times // (24 * 60 * MINUTE)
        found, counts = np.unique(days, return_counts=True)
        kept = days == found[counts.argmax()]
        times, names = times[kept], pc.filter(names, pa.array(kept))
    codes = pc.dictionary_encode(names)
    keys = codes.indices.to_numpy().astype(np.int64)
    times = times - times[0]
    if spread:
        _, first, size = np.unique(times, return_index=True, return_counts=True)
        place = np.arange(len(times)) - np.repeat(first, size)
        times = times + place * spread // np.repeat(size, size)
    return UpdateWorkload(times, keys, len(codes.dictionary), int(times[-1]) + max(spread, 1))


# -- pieces ----------------------------------------------------------------------------------


def _end(updates: int, gap: float) -> int:
    return int(np.rint(updates * gap))


def _drawn(shares: Floats, count: int, dice: np.random.Generator) -> Ints:
    edges = np.cumsum(shares)
    drawn = np.searchsorted(edges, dice.random(count) * edges[-1], side="right")
    return np.asarray(np.minimum(drawn, len(shares) - 1), dtype=np.int64)


def _merged(times: list[Floats], keys: list[Ints], key_count: int, until: int) -> UpdateWorkload:
    """Merge parts in the order of time."""
    at = np.minimum(np.rint(np.concatenate(times)), until).astype(np.int64)
    order = np.argsort(at, kind="stable")
    return UpdateWorkload(at[order], np.concatenate(keys)[order].astype(np.int64), key_count, until)
