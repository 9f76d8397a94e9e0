"""Running rows of one kind of window: panes enter, rows are emitted, panes leave.

Idea: memory holds one running row per group. When the watermark closes a window, its newest panes
are added to the rows, the rows are emitted, and its oldest panes are removed. Slices that enter are
on the log, or are rows of shorter windows (`composed_windows`), added as those close; slices that
leave are the same ones, or were folded again from the tuples that leave. If rows exceed the quota
they are split into partitions of `id_high`, and a version passes over the partitions one by one.
For a tumbling window that shares no tiles, input is added at once, so that little is left to do
when all its groups are emitted.

Invariants:
1. A window [s, e) is emitted once, when the watermark reaches e, with exactly the groups and events
   in it (`test_oracle_windows_equal_the_obvious_computation`).
2. An event older than the watermark still counts in every window that is open
   (`test_an_event_behind_the_watermark_counts_in_windows_still_open`).
3. For updates, a group is emitted if an event entered or left since it was last emitted; finally,
   when it has no event left (`test_oracle_updates_are_the_differences_between_windows`).
4. Rows of tumbling windows are added by the version in which they arrive
   (`test_bounded_the_end_of_a_window_that_tumbles_adds_only_its_own_batch`).

Cost: each entry is read at most three times (added, removed, and once in between for fields without
an inverse, spread over the slides by `two_stacks`), whatever range/slide is; once for tumbling
windows, since all of their content leaves together; O(groups) per slide. Sliding windows are
processed many at a time (`strides`).

Limits: an event behind the watermark, in a pane that leaves soon, makes fields without an inverse
fold their window again, once in that version.

References: panes (Li et al., No Pane, No Gain).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ints, Table
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.kernels.grid.groups import LAST as LAST_PANE
from icestream.operators.folding.fields import Layout
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN, LAST
from icestream.operators.grid.composed_windows import Tiles, WindowResults
from icestream.operators.grid.emission import Emission
from icestream.operators.grid.groups import ResidentGroups
from icestream.operators.grid.partitions import Partition, Partitions
from icestream.operators.grid.slice_log import SliceCursor, SliceLog
from icestream.operators.grid.slices import SliceDirectory, Slices, distinct_panes, in_order
from icestream.operators.grid.strides import Stride, starts_of
from icestream.operators.grid.two_stacks import TwoStacks
from icestream.operators.protocol import Emitted
from icestream.plan.windows.grid import Sliding, WindowSequence, WindowStep


class Rolling:
    """The groups of one kind of window, and the position of the windows."""

    def __init__(
        self,
        course: WindowSequence,
        layout: Layout,
        groups: ResidentGroups,
        partitions: Partitions,
        directory: SliceDirectory,
        slices: SliceLog,
        position: dict[str, int],
        *,
        updates: bool,
        tiles: Tiles | None = None,
        alone: bool = False,
    ) -> None:
        """Work on state that is in an arena; `position` is part of its header.

        Slices of panes enter, or `tiles` of tumbling windows; windows that are `alone` are never
        composed of tiles.
        """
        self.groups = groups
        self.partitions = partitions
        self.position = position
        position.setdefault("start", MINUS_INFINITY)
        position.setdefault("done", MINUS_INFINITY)
        position.setdefault("added", MINUS_INFINITY)
        position.setdefault("quiet", 1)
        self._course = course
        self._layout = layout
        self._directory = directory
        self._slices = slices
        self._updates = updates
        self._tiles = tiles
        #: whether many windows are processed at a time
        self._strides = (
            isinstance(course, Sliding) and not (course.tumbles or updates) and tiles is None
        )
        #: whether rows are added as they arrive, so that little is left to do when a window closes
        self._early = alone and course.tumbles and not updates
        #: rows added to running rows
        self.consolidated = 0
        #: panes read, to enter, to leave, and for suffixes
        self.panes_read = 0
        #: the position of the windows after the current pass
        self._ahead = dict(position)

    # -- groups ----------------------------------------------------------------------------

    def admit(self, partition: Partition, keys: pa.Table) -> pa.Table | None:
        """Open the groups of a partition; return the keys that are new to it, if any.

        For updates, a group whose last row is still to be emitted counts as new when it returns,
        because it would be new without updates: so a version can be replayed for either.
        """
        found = self.partitions.admit(partition, lambda: self._inside(keys, partition))
        if found is None:
            return None
        inside, fresh = found
        if self._updates:
            names = (ID_HIGH_COLUMN, ID_LOW_COLUMN)
            fresh = self.groups.without_events(*(inside.column(n).to_numpy() for n in names))
        return inside.take(pa.array(fresh)) if len(fresh) else None

    def touch(self, slices: Slices, partition: Partition) -> None:
        """Record the latest pane of the groups of new slices."""
        for pane, entries in self._slices.read(self._open(slices), partition):
            self.groups.touch(entries, pane)

    def _inside(self, keys: pa.Table, partition: Partition) -> pa.Table:
        """Return the keys of a partition that have an entry in an open window."""
        inside = keys.column(LAST).to_numpy() >= self.position["start"]
        if not partition.whole:
            inside &= partition.holds(keys.column(ID_HIGH_COLUMN).to_numpy())
        return keys if inside.all() else keys.filter(pa.array(inside))

    def _open(self, slices: Slices) -> Slices:
        """Return the slices whose panes are in an open window."""
        return slices[slices["pane"] >= self.position["start"]]

    # -- windows ---------------------------------------------------------------------------

    def join(self, partition: Partition, new: Slices) -> None:
        """Add new slices of panes that the running rows already contain."""
        new = self._open(new)
        late = new[new["pane"] < self.position["added"]]
        two_stacks = self._two_stacks(partition)
        if len(late):
            self._add(self._slices.read(late, partition), two_stacks)
        if self._tiles is not None:
            self._catch_up(partition)
        if two_stacks is not None:
            two_stacks.mend(late, self.position["start"], self.position["added"])
            self.panes_read += two_stacks.panes

    def _catch_up(self, partition: Partition) -> None:
        """Add the panes of tiles that closed before the windows were composed of tiles."""
        missed = self._directory.between(self.position["added"], self._reached)
        self._add(self._slices.read(missed, partition), None)

    @property
    def _reached(self) -> int:
        """Return the pane before which everything is in the running rows or will be added."""
        added, done = self.position["added"], self.position["done"]
        if self._tiles is None or done == MINUS_INFINITY:
            return added
        return max(added, self._tiles.reached(done))

    def _two_stacks(self, partition: Partition) -> TwoStacks | None:
        """Return the stacks of a partition; None if no field needs any."""
        if not isinstance(self._course, Sliding) or self._course.tumbles:
            return None
        if self._layout.suffix_words == 0:
            return None
        return TwoStacks(self._course, self.groups, partition, self._directory, self._slices)

    def _add(self, slices: Iterator[tuple[int, Table]], two_stacks: TwoStacks | None) -> None:
        """Merge slices into the running rows."""
        turning = INFINITY if two_stacks is None else two_stacks.turning
        for pane, entries in self._counted(slices):
            self.groups.add(entries, behind=pane >= turning)
            self.consolidated += len(entries)

    def _counted(self, slices: Iterator[tuple[int, Table]]) -> Iterator[tuple[int, Table]]:
        """Count the panes of slices that arrive in order."""
        before = None
        for pane, entries in slices:
            self.panes_read += pane != before
            before = pane
            yield pane, entries

    def advance(
        self,
        partition: Partition,
        watermark: Micros,
        leaving: Slices | None,
        output: Emission,
        level: WindowResults | None = None,
    ) -> Iterator[Emitted]:
        """Emit the windows that close, adding and expiring panes as they enter and leave.

        `leaving` are the slices to remove; None if they are those that entered. Emitted rows are
        also written to `level`.
        """
        if self._strides and level is None:
            yield from self._stride(partition, watermark, leaving, output)
            return
        two_stacks = self._two_stacks(partition)
        dead: list[Ints] = []
        entering = self._entering(partition, watermark)
        going = (
            self._from(self.position["start"], self._course.first_open(watermark), partition)
            if leaving is None
            else SliceCursor(self._slices.read(in_order(leaving), partition))
        )
        for step in self._steps(watermark):
            self._add(entering.before(step.end), two_stacks)
            first = 0
            while True:
                first = output.collect(self.groups, first, step)
                if level is not None:
                    level.put(step.start, output.entries(self.groups))
                if not output.full:
                    break
                dead.extend(self._emptied(output, step))
                yield from output.take(self.groups)
            dead.extend(self._emptied(output, step))
            gone = self._leave(two_stacks, step, going)
            dead.extend(() if self._updates else gone)
            if dead and output.rows == 0:
                self.groups.release(np.concatenate(dead))
                dead = []
        if output.rows:
            yield from output.take(self.groups)
        if dead:
            self.groups.release(np.concatenate(dead))
        if self._tiles is not None:
            self._add(entering.before(INFINITY), two_stacks)
        elif self._early:
            self._begin(partition, watermark)
        self.panes_read += 0 if two_stacks is None else two_stacks.panes

    def _begin(self, partition: Partition, watermark: Micros) -> None:
        """Add what has arrived of the next window to close; the rest is added as it arrives."""
        if not MINUS_INFINITY < watermark < INFINITY:
            return
        at = self._ahead
        start = max(at["start"], self._course.first_open(watermark))
        done = max(at["done"], self._course.grid.passed(watermark))
        end = self._course.next(start, done, start).end
        come = self._directory.between(max(at["added"], start), end)
        self._add(self._slices.read(come, partition), None)
        at["added"] = max(at["added"], end)

    def _stride(
        self, partition: Partition, watermark: Micros, leaving: Slices | None, output: Emission
    ) -> Iterator[Emitted]:
        """Do the work of `advance` for many windows at a time."""
        assert isinstance(self._course, Sliding)
        at = self._ahead = dict(self.position)
        start = at["start"]
        if self._course.first_open(watermark) <= start:
            return
        spans = self.spans(watermark)
        entering, going = (self._directory.between(*each) for each in spans)
        if leaving is not None:
            going = in_order(leaving)
        two_stacks = self._two_stacks(partition)
        stride = Stride(
            self._course,
            self.groups,
            self._slices.portions(entering, partition),
            self._slices.portions(going, partition),
            output,
            two_stacks,
        )
        for starts in starts_of(self._course, self._directory.panes, start, watermark):
            yield from stride.run(starts)
            last = int(starts[-1])
            end = last + self._course.range
            at.update(start=last + self._course.slide, done=end, added=max(at["added"], end))
            at["quiet"] = 0
        yield from stride.finish()
        self.consolidated += stride.added
        self.panes_read += len(distinct_panes(entering)) + len(distinct_panes(going))
        self.panes_read += 0 if two_stacks is None else two_stacks.panes

    def spans(self, watermark: Micros) -> list[tuple[int, int]]:
        """Return the panes that enter, and those that leave, for windows processed together."""
        if not self._strides:
            return []
        assert isinstance(self._course, Sliding)
        start, following = self.position["start"], self._course.first_open(watermark)
        first = max(self.position["added"], start)
        end = following - self._course.slide + self._course.range
        return [(first, max(first, end)), (start, max(start, following))]

    def move_to(self, position: Mapping[str, int]) -> None:
        """Move to the position of a snapshot, and of those of other parents at its watermark.

        A parent without events in a window did not add it: it has no pane up to there.
        """
        for name, value in position.items():
            choose = min if name == "quiet" else max
            self.position[name] = choose(value, self.position[name])

    def settle(self, watermark: Micros) -> None:
        """Record the position of the windows after every partition has passed."""
        if watermark == MINUS_INFINITY:
            return
        passed = self._course.grid.passed(watermark)
        reached = self._tiles.reached(passed) if self._tiles else self._ahead["added"]
        self.position["quiet"] = self._ahead["quiet"]
        self._move(watermark, self._ahead, reached)

    def rested(self, watermark: Micros) -> None:
        """Move to a watermark that nothing happened before."""
        if watermark != MINUS_INFINITY:
            self._move(watermark, self.position, self.position["added"])

    def _move(self, watermark: Micros, at: Mapping[str, int], added: int) -> None:
        passed = self._course.grid.passed(watermark)
        start = max(at["start"], self._course.first_open(watermark))
        self.position.update(start=start, done=max(at["done"], passed), added=max(added, start))

    @property
    def rests_until(self) -> Micros:
        """Return the watermark with which the next window closes that has an event."""
        if self._updates or self._tiles is not None:
            return MINUS_INFINITY
        step = self._next(self.position)
        return INFINITY if step is None else self._course.grid.instant(step.end)

    def _steps(self, watermark: Micros) -> Iterator[WindowStep]:
        """Yield the windows to emit; for updates, also the first of a series without events."""
        at = self._ahead = dict(self.position)
        while (step := self._next(at)) is not None:
            if self._course.grid.instant(step.end) > watermark:
                return
            first = self._directory.first_from(step.start)
            at["quiet"] = int(first is None or first >= step.end)
            at["start"] = max(at["start"], step.leave)
            at["done"] = step.end
            at["added"] = max(at["added"], step.end)
            yield step

    def _next(self, at: dict[str, int]) -> WindowStep | None:
        """Return the next window with an event, or, for updates, the first without one."""
        if self._updates and not at["quiet"]:
            return self._course.next(at["start"], at["done"], at["start"])
        first = self._directory.first_from(at["start"])
        return None if first is None else self._course.next(at["start"], at["done"], first)

    def _emptied(self, output: Emission, step: WindowStep) -> list[Ints]:
        """Return, for updates, the groups just emitted that have no events now or later."""
        if not self._updates:
            return []
        slots = output.emptied()
        return [slots[self.groups.rows[slots, LAST_PANE] < step.end]]

    def _leave(
        self, two_stacks: TwoStacks | None, step: WindowStep, going: SliceCursor
    ) -> list[Ints]:
        """Remove the oldest panes of a window; return groups that have nothing left."""
        if self._course.tumbles:
            return [self.groups.empty(step.end)] if step.leave >= step.end else []
        if two_stacks is not None:
            two_stacks.ready(step.start)
        dead = []
        for pane, entries in self._counted(going.before(step.leave)):
            none = np.empty((len(entries), 0), dtype=np.int64)
            suffixes = none if two_stacks is None else two_stacks.pop(len(entries))
            dead.append(self.groups.expire(entries, pane, suffixes))
        if two_stacks is not None:
            two_stacks.build(step.start)
        return dead

    def _entering(self, partition: Partition, watermark: Micros) -> SliceCursor:
        """Return the slices that may enter windows, in order."""
        if self._tiles is None:
            first = max(self.position["added"], self.position["start"])
            return self._from(first, self._course.grid.passed(watermark), partition)
        passed = max(self._course.grid.passed(watermark), MINUS_INFINITY)
        return SliceCursor(self._tiles.closing(self._reached, passed, partition))

    def _from(self, pane: int, end: int, partition: Partition) -> SliceCursor:
        """Return the slices from `pane` up to `end`, exclusive, in order, read ahead."""
        slices = self._directory.between(pane, max(pane, end))
        return SliceCursor(self._slices.read(slices, partition))

    @property
    def statistics(self) -> dict[str, Any]:
        return {
            "groups": self.partitions.groups,
            "partitions": len(self.partitions),
            "consolidated": self.consolidated,
            "panes_read": self.panes_read,
        }
