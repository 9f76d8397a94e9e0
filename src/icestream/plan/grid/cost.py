"""The choice between storing tuples and storing panes, by the bytes that each would take.

Idea: windows need the past again when it leaves them. One plan stores the events themselves
(`tuples`), the other stores one entry per group and pane (`panes`). Both are computed from the same
few measurements. Tuples are folded again for every window they leave, so they take two to four
times the processor time of panes: they are chosen where they save at least half of the log.

    panes    g * (s' + panes * entry) + G * s      panes = range / pane
    tuples   events * tuple + G * s                events = rate * range, or rows

A query set over one stream stores tuples, or panes of the common length, for its largest range once
(tuples once for all groupings, panes one entry for each), and running rows for every window. A
group has one row with all its fields. What the log stores to rebuild a shard is added: everything
that versions wrote since the last snapshot.

Invariants:
1. The printed example is reproduced (`test_the_printed_example_comes_out_at_17_and_8_gigabytes`).
2. Neither estimate falls when a range, a rate or a count grows
   (`test_more_of_anything_never_costs_less`).
3. Further ranges within the largest add running rows and no log
   (`test_ranges_inside_the_largest_add_rows_and_no_log`).
4. Tuples are chosen only if they save half of the log (`test_tuples_must_save_half_of_the_log`)
   and, for fields without an inverse, if the saved bytes outweigh those read again
   (`test_folding_again_must_save_more_than_it_reads`).

Limits: for a window longer than anything measured, the groups seen so far are used, a lower bound,
and the estimate states this; both plans need the same running rows, so it does not affect the
choice. Processor time is not estimated; `python -m bench plan-choice` measures it beside the bytes.

References: Mendes, Bizarro, Marques (2013), formulas 2.1, 2.2, 3.1 and 3.2.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import format_bytes
from icestream.plan.grid.space_formulas import (
    BLOCK_BYTES,
    SpaceEstimate,
    TrafficEstimate,
    space_of_panes,
    space_of_tuples,
    traffic,
    versions_kept,
)
from icestream.plan.windows.grid import Cumulative, Grid, Windows

Plan = Literal["tuples", "panes"]

#: microseconds per second
SECOND: Micros = 1_000_000
#: tuples are chosen if panes take this many times their log, and left again if they take less than
#: the second
WORTH_FOLDING_AGAIN = 2.0
STILL_WORTH_IT = 1.5


# -- measurements --------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyCounts:
    """The number of groups in a stretch of the stream, by its length."""

    #: (length, groups), lengths ascending, in microseconds or rows, like the windows
    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        """Refuse measurements that are not sorted."""
        lengths = [length for length, _ in self.points]
        if not lengths or lengths[0] <= 0 or lengths != sorted(set(lengths)):
            msg = f"key counts need ascending lengths above zero; got {self.points}: sort them"
            raise DefinitionError(msg)

    def rows(self, length: int) -> float:
        """Return the groups of a stretch, interpolated by a power law between measurements.

        Outside the measurements it is the nearest one: an upper bound for a shorter stretch, a
        lower bound for a longer one.
        """
        lengths = [point for point, _ in self.points]
        at = bisect_left(lengths, length)
        if at == len(lengths) or at == 0 or lengths[at] == length:
            return float(self.points[min(at, len(lengths) - 1)][1])
        (low, few), (high, many) = self.points[at - 1 : at + 1]
        if few <= 0 or many <= 0:
            return float(few + (many - few) * (length - low) / (high - low))
        return float(few * (many / few) ** (math.log(length / low) / math.log(high / low)))

    def extended(self, length: int, events: float) -> KeyCounts:
        """Add the groups that a longer stretch would have if all groups were equally likely.

        `events` are those of the longest stretch measured, counted once for each grouping. Of so
        many, drawn from G groups, G * (1 - exp(-events / G)) groups occur: that determines G.
        """
        last, seen = self.points[-1]
        if length <= last or seen <= 0:
            return self
        more = events * length / last
        low, high = seen, max(seen, more) * _MANY
        while high > low * 1.001:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if _met(events, middle) < seen else (low, middle)
        return KeyCounts((*self.points, (length, max(seen, min(_met(more, high), more)))))

    def beyond(self, length: int) -> bool:
        """Return whether a stretch is longer than any that was measured."""
        return length > self.points[-1][0]


#: with this many times as many groups as events, the number of groups counts as infinite
_MANY = 1_000.0


def _met(events: float, groups: float) -> float:
    """Return the expected number of equally likely groups that have an event."""
    return -groups * math.expm1(-events / groups)


@dataclass(frozen=True)
class WindowStatistics:
    """The measurements of a stream."""

    #: events per second of event time
    rate: float
    #: bytes of a stored tuple
    tuple_bytes: float
    #: groups by length of the stretch, all groupings together: g at a pane, G at a range
    keys: KeyCounts
    #: bytes of an entry, and of a group's running row, with all their fields
    entry_bytes: float
    group_bytes: float
    #: whether all fields can be subtracted; otherwise entries are read once more, and tuples by
    #: every shard, twice for each kind of sliding window
    invertible: bool = True
    shards: int = 1
    #: length of a version's input, in microseconds or rows; 0 to ignore what is stored to rebuild
    #: a shard
    version: float = 0.0


# -- a set of windows ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """The cost of one plan."""

    plan: Plan
    space: SpaceEstimate
    traffic: TrafficEstimate


@dataclass(frozen=True)
class PlanChoice:
    """A plan and the reason."""

    plan: Plan
    reason: str


@dataclass(frozen=True)
class PlanComparison:
    """Both plans for one set of windows."""

    panes: Estimate
    tuples: Estimate
    #: a pane as tuples and as entries, as text
    pane: str
    #: whether what leaves can be subtracted; otherwise every shard folds tuples again
    invertible: bool
    #: whether a window is longer than any stretch with counted groups
    lower_bound: bool

    def __getitem__(self, plan: Plan) -> Estimate:
        return self.panes if plan == "panes" else self.tuples

    def preferred(self, present: Plan = "panes") -> Plan:
        """Return panes, unless tuples save half of the log; near that, stay with the present plan.

        If tuples are folded again by every shard, stored bytes are also weighed against bytes that
        move: what is saved of one must not be lost to the other.
        """
        panes, tuples = self.panes, self.tuples
        least = STILL_WORTH_IT if present == "tuples" else WORTH_FOLDING_AGAIN
        saves = panes.space.log >= least * tuples.space.log
        moves = panes.space.total * panes.traffic.bytes, tuples.space.total * tuples.traffic.bytes
        return "tuples" if saves and (self.invertible or moves[0] > moves[1]) else "panes"

    def choose(self, forced: str | None = None) -> PlanChoice:
        """Return the preferred plan, or the user's choice."""
        if forced is not None and forced not in ("panes", "tuples"):
            msg = f"the option plan must be 'panes' or 'tuples'; got {forced!r}"
            raise DefinitionError(msg)
        sizes = {name: _size(self[name].space.total) for name in _PLANS}
        least = "at least " if self.lower_bound else ""
        both = f"{least}{sizes['panes']} as panes and {least}{sizes['tuples']} as tuples"
        if forced == "panes" or (forced is None and self.preferred() == "panes"):
            plan: Plan = "panes"
        else:
            plan = "tuples"
        if forced is not None:
            why = f"the option plan requires it: {both}"
        elif not self.invertible:
            moved = {name: f"{_size(self[name].traffic.bytes)}/s" for name in _PLANS}
            why = (
                f"an aggregate cannot be subtracted, so tuples are read again: {both}, moving "
                f"{moved['panes']} and {moved['tuples']}: {self.pane}"
            )
        else:
            why = f"the windows take {both}: {self.pane}"
            if plan == "panes" and self.tuples.space.log < self.panes.space.log:
                why += "; tuples take more processor time and are for half of the log or less"
        return PlanChoice(plan, f"{plan} because {why}")

    def table(self, forced: str | None = None) -> str:
        """Return both plans and the choice, as text."""
        lines = [("plan", "log", "memory", "requests/s", "bytes/s")]
        for name in _PLANS:
            each = self[name]
            lines.append(
                (
                    name,
                    _size(each.space.log),
                    _size(each.space.memory),
                    f"{each.traffic.requests:,.1f}",
                    _size(each.traffic.bytes),
                )
            )
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        text.append(f"chosen: {self.choose(forced).reason}")
        if self.lower_bound:
            text.append(
                "a window is longer than anything measured: its groups are those seen so far"
            )
        return "\n".join(text)


@dataclass(frozen=True)
class WindowShape:
    """A set of windows, in units of time or in rows."""

    ranges: Sequence[int]
    #: how many of them overlap, so that what leaves them must be read
    sliding: int
    pane: int
    events_per_unit: float


def estimate(
    windows: Sequence[Windows | Cumulative], statistics: WindowStatistics
) -> PlanComparison:
    """Compare the cost of storing tuples and storing panes for time windows over one stream."""
    if not windows:
        msg = "there is no window to estimate; give at least one"
        raise DefinitionError(msg)
    kinds = list(dict.fromkeys(windows))
    sliding = sum(isinstance(each, Windows) and not each.tumbles for each in kinds)
    pane = Grid.of(windows).pane
    ranges = [each.range for each in kinds]
    shape = WindowShape(ranges, sliding, pane, statistics.rate / SECOND)
    return compare(shape, statistics)


def compare(shape: WindowShape, stats: WindowStatistics) -> PlanComparison:
    """Compare the cost of storing tuples and storing panes for windows of a shape."""
    ranges, pane = shape.ranges, shape.pane
    largest = max(ranges)
    entries = stats.keys.rows(pane)
    groups = sum(stats.keys.rows(each) for each in ranges)
    events = shape.events_per_unit * largest
    panes = largest / pane
    in_panes = space_of_panes(
        aggregates=1,
        entries=entries,
        panes=panes,
        groups=groups,
        open_bytes=stats.entry_bytes,
        entry_bytes=stats.entry_bytes,
        state_bytes=stats.group_bytes,
    )
    in_tuples = space_of_tuples(
        aggregates=1,
        events=events,
        tuple_bytes=stats.tuple_bytes,
        groups=groups,
        state_bytes=stats.group_bytes,
    )
    blocks = SpaceEstimate(0, (1 + len(ranges)) * BLOCK_BYTES)
    kept = _rebuilding(shape, stats, groups * stats.group_bytes)
    moved = _moved(shape, stats)
    return PlanComparison(
        panes=Estimate("panes", in_panes + kept["panes"] + blocks, moved["panes"]),
        tuples=Estimate("tuples", in_tuples + kept["tuples"] + blocks, moved["tuples"]),
        pane=(
            f"a pane is {shape.events_per_unit * pane:,.0f} events of "
            f"{stats.tuple_bytes:,.0f} bytes or {entries:,.0f} entries of "
            f"{stats.entry_bytes:,.0f} bytes"
        ),
        invertible=stats.invertible,
        lower_bound=stats.keys.beyond(largest),
    )


# -- inside --------------------------------------------------------------------------------------

_PLANS: tuple[Plan, Plan] = ("panes", "tuples")


def _rebuilding(
    shape: WindowShape, stats: WindowStatistics, snapshot: float
) -> dict[Plan, SpaceEstimate]:
    """Return what the log stores to rebuild a shard: a snapshot, and what versions wrote since.

    Panes are stored anyway, only longer; tuples also need their entries: those that enter and, if
    they are subtracted, those that leave.
    """
    if stats.version <= 0:
        return {"panes": SpaceEstimate(0, 0), "tuples": SpaceEstimate(0, 0)}
    entering = stats.keys.rows(shape.pane) * stats.entry_bytes * stats.version / shape.pane
    leaving = entering * shape.sliding if stats.invertible else 0.0
    events = shape.events_per_unit * stats.version * stats.tuple_bytes
    panes = snapshot + versions_kept(snapshot, entering) * entering
    tuples = snapshot + versions_kept(snapshot, entering + leaving) * (entering + leaving + events)
    return {"panes": SpaceEstimate(panes, 0), "tuples": SpaceEstimate(tuples, 0)}


def _moved(shape: WindowShape, stats: WindowStatistics) -> dict[Plan, TrafficEstimate]:
    """Return the traffic: entries in and out of windows; tuples, and the entries made of them."""
    windows, sliding = len(shape.ranges), shape.sliding
    length = shape.pane * shape.events_per_unit
    entries = stats.keys.rows(shape.pane) * stats.rate / length if length else 0.0
    out = 1 if stats.invertible else 2
    panes = traffic(entries, stats.entry_bytes, 1 + windows + out * sliding)
    if stats.invertible:
        tuples = traffic(stats.rate, stats.tuple_bytes, 1 + sliding)
        made = traffic(entries, stats.entry_bytes, 1 + windows + 2 * sliding)
    else:
        tuples = traffic(stats.rate, stats.tuple_bytes, 1 + 2 * sliding * stats.shards)
        made = traffic(entries, stats.entry_bytes, 1 + windows)
    return {"panes": panes, "tuples": tuples + made}


def _size(size: float) -> str:
    return format_bytes(round(size))
