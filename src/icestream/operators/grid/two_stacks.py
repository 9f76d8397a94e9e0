"""Suffixes without a pause: the next stack is built while one is in use.

Idea: a stack serves half a window. While its panes leave, all panes of the half behind it have
entered; each slide reads a few of them backwards onto a second stack. When the first is used up,
the second replaces it, and a third begins.

    start    flipped            turned     turning       added
      | in use  |   to be built   |   built   |            |
      [---------)[-----------------------------)[----------)
                 <------------------ back ----------------->
                                                <next back->

Invariants, with W panes in a window, S in a slide, B panes on a stack and start <= flipped:
1. The stack has the suffixes of [start, flipped), the next one those of [turned, turning), and the
   rows hold what `kernels.grid.groups` describes: front [start, flipped), back [flipped, added),
   next front [turned, turning), next back [turning, added). So windows equal folding their panes
   (`test_oracle_windows_equal_the_obvious_computation`,
   `test_oracle_windows_of_many_lengths_with_late_events`).
2. A stack ends where a window starts, and W <= 2B: nothing enters behind the next stack but one.
3. While no event arrives behind the watermark, a slide reads at most 4 panes for each pane it
   moves: one enters, one leaves, and two are built (one if slides divide the window)
   (`test_bounded_every_slide_reads_a_few_panes_whatever_the_window`).

Cost: each entry is read three times, and merged into two backs as it enters. A group's row has two
more sets of words for the fields without an inverse; all rows are visited once per stack. Suffixes
for at most W + 2S panes are on local disk.

Limits: a *flip at once*, which reads the whole window, handles the unusual cases: an event behind
the watermark in a pane that has suffixes, groups loaded from a snapshot, a partition that was
split. An event behind the watermark in a pane of the stack being built restarts that stack in the
remaining slides. Windows that are processed many at a time build their stacks together.

References: two-stacks aggregation, in halves; Tangwongsan, Hirzel, Schneider, Low-Latency
Sliding-Window Aggregation in Worst-Case Constant Time, 2017, bounds each step with one queue.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from icestream.core.arrays import Table
from icestream.operators.grid.groups import ResidentGroups
from icestream.operators.grid.partitions import Partition
from icestream.operators.grid.slice_log import SliceLog
from icestream.operators.grid.slices import SliceDirectory, Slices
from icestream.plan.windows.grid import Sliding


class TwoStacks:
    """The stacks of suffixes of one partition, for the fields without an inverse."""

    def __init__(
        self,
        course: Sliding,
        groups: ResidentGroups,
        partition: Partition,
        directory: SliceDirectory,
        slices: SliceLog,
    ) -> None:
        self._course = course
        self._groups = groups
        self._partition = partition
        self._directory = directory
        self._slices = slices
        slide = course.slide
        #: panes on a stack: half a window, in whole slides
        self._length = -(-course.range // (2 * slide)) * slide
        #: panes between the first and the last window during which a stack is built
        self._lead = min((course.range - self._length) // slide * slide, self._length - slide)
        #: panes read for suffixes
        self.panes = 0

    @property
    def flipped(self) -> int:
        """Return the pane before which slices that leave have suffixes."""
        return self._partition.flipped

    @property
    def turning(self) -> int:
        """Return the pane from which slices that enter are also merged into the next back."""
        return self._partition.turning

    def pop(self, rows: int) -> Table:
        """Return the suffixes of the slices that leave next, which have `rows` rows."""
        return self._partition.suffixes.pop(rows)

    def mend(self, late: Slices, start: int, added: int) -> None:
        """Rebuild suffixes that were lost, or that `late` slices have made invalid.

        The next window begins at `start`, and panes before `added` have entered.
        """
        partition = self._partition
        if not len(late) and not partition.stale:
            return
        if partition.stale or (late["pane"] < partition.flipped).any():
            self._flip(start, added)
        elif ((late["pane"] >= partition.turned) & (late["pane"] < partition.turning)).any():
            partition.next.clear()
            self._groups.drop_next()
            partition.turned, partition.since = partition.turning, start

    def ready(self, start: int) -> None:
        """Make suffixes ready for what leaves the window at `start`, all of which has entered."""
        partition = self._partition
        if start == partition.flipped:
            self.build(start)
            partition.suffixes.replace(partition.next)
            self._groups.take_next()
            self._begin(partition.turning)
        elif start > partition.flipped:
            self._flip(start, start + self._course.range)

    def build(self, start: int) -> None:
        """Build the part of the next stack that is due after the window at `start` was emitted."""
        partition, slide = self._partition, self._course.slide
        steps = (partition.flipped - partition.since) // slide + 1
        done = (start - partition.since) // slide + 1
        if done <= 0:
            return
        length = partition.turning - partition.flipped
        due = partition.turning - -(-length * done // steps)
        for entries in self._backwards(due, partition.turned):
            partition.next.push(self._groups.push_next(entries))
        partition.turned = due

    def _flip(self, start: int, added: int) -> None:
        """Build the stack of a window at once, from all of its panes that have entered."""
        partition, slide = self._partition, self._course.slide
        partition.suffixes.clear()
        partition.next.clear()
        self._groups.start_flip()
        flipped = start + min(self._length, (added - start) // slide * slide)
        for entries in self._backwards(flipped, added):
            self._groups.push_back(entries)
        for entries in self._backwards(start, flipped):
            partition.suffixes.push(self._groups.push_suffix(entries))
        self._begin(flipped)
        partition.stale = False

    def _begin(self, flipped: int) -> None:
        """Record that the stack up to `flipped` is in use, and plan when to build the next one."""
        partition = self._partition
        partition.flipped = flipped
        partition.turning = partition.turned = flipped + self._length
        partition.since = flipped - self._lead

    def _backwards(self, first: int, last: int) -> Iterator[Table]:
        """Yield the entries of slices with `first <= pane < last`, the last slice first."""
        slices = self._directory.between(first, last)[::-1]
        self.panes += len(np.unique(slices["pane"]))
        for portion in self._slices.portions(slices, self._partition):
            yield portion.entries
