"""Window aggregates over panes: the state is on the log, memory holds one running row per group.

Idea: a batch's entries are written to the log as slices, once, whatever the number of views. Each
kind of window has its own running rows (`rolling`). It reads the slices as panes enter and leave
it, or takes the rows of shorter windows that close (`composed_windows`). With the store `tuples`,
slices are not kept until they leave: what leaves is folded again from the raw events, which the log
holds once for all groupings and all windows. Jobs do this before the shards run, or the shard
itself if fields have no inverse (`refolding`).

Invariants:
1. A view emits what Spark's `groupBy(window, keys).agg(...)` gives in append mode
   (`test_oracle_windows_equal_the_obvious_computation`), alone or together with other views
   (`test_oracle_views_that_share_windows_equal_views_alone`).
2. Both stores emit the same rows (`test_oracle_both_stores_emit_the_same_rows`,
   `test_oracle_every_aggregate_from_raw_events`).
3. The store may change between versions if all fields have an inverse: slices of versions that
   stored panes leave as they entered, the others as `changes` (`test_oracle_the_store_may_change`).
4. Arena and work buffers stay inside the quota (`test_bounded_state_of_ten_times_the_budget`).
5. Restoring a snapshot and replaying the versions after it leads to the same rows
   (`test_crash_restored_state_emits_the_same_rows`).

Cost: each entry is written once and read at most three times by each kind of window, once by
tumbling windows.

References: two-level and one-window aggregation, blocks that return for expiry, one repository for
overlapping windows (Mendes et al., 2013, sections 2 to 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Mask
from icestream.core.times import INFINITY, MINUS_INFINITY, Micros
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.folding.fields import EXTENTS, extents_of
from icestream.operators.grid.composed_windows import Tiles, WindowResults
from icestream.operators.grid.emission import Emission
from icestream.operators.grid.groups import ResidentGroups
from icestream.operators.grid.partitions import Partitions, with_room
from icestream.operators.grid.records import group_records, log_keys, logged_keys, save_groups
from icestream.operators.grid.refolding import OwedDirectory, OwedRolling, OwedSlices, RawEvents
from icestream.operators.grid.rolling import Rolling
from icestream.operators.grid.slice_log import SLICE_BYTES, SliceLog
from icestream.operators.grid.slices import SLICE, RecentSlices, SliceDirectory, Slices
from icestream.operators.grid.spec import WindowSpec
from icestream.operators.logged_operator import LoggedOperator, once, records_of
from icestream.operators.protocol import Emitted, Inputs, PastVersion, Shard
from icestream.plan.windows.grid import WindowSequence
from icestream.state.identities import IdRange
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import BASE

#: lifetime classes: slices, and what left in a version; keys and snapshots have the class `BASE`
PANES = "panes"
CHANGES = "changes"

#: kinds of records of the class `BASE` besides those of groups
SLICES = 4
POSITION = 5


class WindowOperator(LoggedOperator):
    """Window aggregates of one shard."""

    lifetimes: ClassVar[tuple[str, ...]] = (PANES, CHANGES, BASE)
    _position_kind = POSITION

    def __init__(
        self,
        spec: WindowSpec,
        shard: Shard,
        store: str = PANES,
        events: tuple[RawEvents, int] | None = None,
        flushed: Micros | None = None,
        switched: tuple[int, ...] = (),
    ) -> None:
        """Attach to the shard's arena; `store` is `panes` or `tuples`.

        With `tuples`, fields without an inverse need the raw `events` and the current version.
        `flushed` is the latest event, if the version closes every window that has one. `switched`
        are the first ordinals of versions that changed the store, if all fields have an inverse.
        """
        super().__init__(shard)
        #: the first marker of each of these versions
        self._switched = np.array([each << 32 for each in switched], dtype=np.uint64)
        self._flushed = flushed
        self._spec = spec
        self._refolds = store != PANES
        # what is folded again is read by the shard that stored it
        self.follows = not self._refolds and not len(switched)
        quota = shard.account.budget.total
        #: bytes of entries sorted at once, and of result fields buffered before they are emitted
        self._chunk_bytes = max(SLICE_BYTES, quota // 32)
        shard.account.resize((6 if spec.handing_on else 4) * self._chunk_bytes)
        self._directory = SliceDirectory(shard.arena)
        #: the fields, with room for the sums of all values seen so far
        self._layout = spec.layout.widened(extents_of(self._header, spec.layout))
        log = (shard, self._layout, self._chunk_bytes, self._chunk_bytes)
        #: the slices that are folded again, if there are any
        self._owed: OwedDirectory | None = None
        recent = None
        if store == PANES and not len(switched):
            recent = RecentSlices(shard.arena, self._layout.entry_width)
        self._slices = SliceLog(*log, recent)
        if self._refolds and spec.layout.suffix_words:
            assert events is not None
            self._slices = OwedSlices(*events, *log)
            most = OwedSlices.most_rows(self._layout, self._chunk_bytes)
            self._owed = OwedDirectory(self._directory, most)
        #: rows of windows that closed in this version, by family, for windows composed of them
        self._levels: dict[int, WindowResults] = {}
        self._families = [self._rolling(number) for number in range(len(spec.families))]
        self._new = np.empty(0, dtype=SLICE)
        self._leaving: list[Slices] = []
        self._inputs: Inputs | None = None
        #: the keys of the batch, if there are few
        self._few_keys: list[pa.Table] | None = None
        self._replaying = False

    def _rolling(self, number: int) -> Rolling:
        arena = self._shard.arena
        layout = self._spec.layouts[number].widened(self._layout.bounds)
        scope = "" if number == 0 else f"{number}-"
        groups = ResidentGroups(layout, self._spec.codec, arena, scope)
        budget = self._shard.account.budget
        positions = self._header.setdefault("positions", {})
        tiles = None
        if number in self._spec.tilings:
            tiling = self._spec.tilings[number]
            tiles = Tiles(tiling, self._levels, self._directory, self._slices)
        rolling = (Rolling if self._owed is None else OwedRolling)(
            self._spec.courses[number],
            layout,
            groups,
            Partitions(
                arena, groups, layout.suffix_words, budget, scope, lambda: self._relieve(number)
            ),
            self._directory,
            self._slices,
            positions.setdefault(str(number), {}),
            updates=any(view.updates for view in self._spec.families[number]),
            tiles=tiles,
            alone=len(self._spec.families) == 1,
        )
        if isinstance(rolling, OwedRolling):
            assert self._owed is not None
            rolling.owed = self._owed
        return rolling

    # -- a version -------------------------------------------------------------------------

    def on_batch(self, inputs: Inputs) -> None:
        self._inputs = inputs

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Write the batch to the log, close the windows that end by the watermark, yield rows."""
        if self._inputs is not None and not self._replaying:
            self._write(self._inputs, watermark)
        self._prepare(watermark)
        snapshot = self._schedule.version_ends(self._snapshot_bytes) and not self._replaying
        try:
            for number in self._spec.order:
                reached = self._reached(number, watermark)
                yield from self._pass(number, reached, snapshot=snapshot)
        finally:
            for level in self._levels.values():
                level.close()
            self._levels.clear()
            self._slices.release()
        for number, family in enumerate(self._families):
            family.settle(self._reached(number, watermark))
        self._directory.drop_before(min(each.position["start"] for each in self._families))
        self._inputs = self._few_keys = None
        self._new = np.empty(0, dtype=SLICE)
        if snapshot:
            self._save_directory(self._directory.all, SLICES)
            extents = {EXTENTS: self._layout.bounds} if self._layout.sums else {}
            self._save_position({**self._header["positions"], **extents})
        self._shard.seal(BASE)

    @property
    def rests_until(self) -> Micros:
        if not self.follows:
            return MINUS_INFINITY
        return min(family.rests_until for family in self._families)

    def rested(self, versions: int, watermark: Micros) -> None:
        self._schedule.hasten(versions)
        for family in self._families:
            family.rested(watermark)

    def _reached(self, number: int, watermark: Micros) -> Micros:
        """Return how far a family is brought forward.

        A flush that goes further for the windows of others would empty those that tell updates.
        """
        views = self._spec.families[number]
        if self._flushed is None or not any(view.updates for view in views):
            return watermark
        return min(watermark, views[0].windows.settled_by(self._flushed))

    def _prepare(self, watermark: Micros) -> None:
        """Read slices that several families share, entering and leaving, only once."""
        spans = [spans for each in self._families if (spans := each.spans(watermark))]
        if self._owed is not None or len(spans) < 2:
            return
        wanted = [both[0] for both in spans], [both[1] for both in spans]
        for each in wanted[: 1 if self._refolds or len(self._switched) else 2]:
            moving = [(first, end) for first, end in each if first < end]
            first = min((span[0] for span in moving), default=0)
            last = max((span[1] for span in moving), default=0)
            if last - first < sum(end - begin for begin, end in moving):
                self._slices.prepare(self._directory.between(first, last))

    def _pass(self, number: int, watermark: Micros, *, snapshot: bool) -> Iterator[Emitted]:
        """Advance one family, partition by partition."""
        family, layout, level = self._families[number], self._layout, None
        if number in self._spec.handing_on:
            path = self._shard.arena.path(f"level-{number}")
            level = self._levels[number] = WindowResults(path, layout, self._chunk_bytes)
        for partition in family.partitions.visit():
            self._open_groups(number, partition)
            family.join(partition, self._new)
            output = Emission(
                self._spec.families[number],
                layout,
                self._spec.types,
                self._spec.grid,
                self._chunk_bytes,
            )
            leaving = self._leaves(number, watermark)
            yield from family.advance(partition, watermark, leaving, output, level)
            if snapshot:
                width = self._layout.group_width
                save_groups(self._shard, family.groups, partition, width, number)
        if level is not None:
            level.seal()

    def _leaves(self, number: int, watermark: Micros) -> Slices | None:
        """Return the slices that leave a family's windows; None if they are those that entered."""
        if self._owed is None and not len(self._switched):
            return self._leaving[number] if self._refolds else None
        start = self._families[number].position["start"]
        following = max(start, self._spec.courses[number].first_open(watermark))
        if self._owed is not None:
            return self._owed.between(start, following)
        entered = self._directory.between(start, following)
        return np.concatenate([self._leaving[number], entered[self._are_kept(entered)]])

    def _are_kept(self, slices: Slices) -> Mask:
        """Return which slices stay until they leave: those of versions that stored panes."""
        before = self._switched.searchsorted(slices["marker"], side="right")
        since = len(self._switched) - before
        return np.asarray((since % 2 == 1) == self._refolds)

    def _write(self, inputs: Inputs, watermark: Micros) -> None:
        courses = self._spec.courses
        needed = _Needed(self._spec.on_panes, watermark, enters=self._refolds)
        self._new = self._slices.write(inputs.entries(), PANES, needed)
        self._with_room(lambda: self._shard.seal(PANES))
        if (self._refolds or len(self._switched)) and self._owed is None:
            self._leaving = [
                self._slices.write(inputs.leaving(number), CHANGES, watermark, number)
                for number in range(len(courses))
            ]
            self._with_room(lambda: self._shard.seal(CHANGES))
        self._take_in(self._new)

    def _take_in(self, slices: Slices) -> None:
        self._widen()
        changes = [slices, *self._leaving]
        self._schedule.log(sum(self._slices.bytes_of(each) for each in changes))
        self._with_room(lambda: self._directory.append(slices))

    def _widen(self) -> None:
        """Make room for the sums of doubles of new slices in the running rows."""
        before, self._layout = self._layout, self._slices.layout
        if self._layout.bounds != before.bounds:
            self._header[EXTENTS] = self._layout.bounds
        if self._layout.at is before.at:
            return
        for family, layout in zip(self._families, self._spec.layouts, strict=True):
            family.partitions.evict()
            family.groups.widen(layout.widened(self._layout.bounds))

    def _open_groups(self, number: int, partition: Any) -> None:
        """Open the groups of the batch that belong to a partition, logging those that are new."""
        family = self._families[number]
        if self._inputs is not None:
            for keys in self._keys(self._inputs):
                fresh = family.admit(partition, keys)
                if fresh is not None and not self._replaying:
                    log_keys(self._shard, fresh, number)
        if self._replaying:
            family.touch(self._new, partition)

    def _keys(self, inputs: Inputs) -> Iterable[pa.Table]:
        """Return the keys of the batch; few keys are read once for all families."""
        if self._few_keys is not None:
            return self._few_keys
        if len(self._families) == 1:
            return inputs.groups()
        few, size = [], 0
        for keys in inputs.groups():
            few.append(keys)
            size += keys.nbytes
            if size > SLICE_BYTES:
                return inputs.groups()
        self._few_keys = few
        return few

    def _relieve(self, number: int) -> bool:
        """Evict the groups of other families; return False if there are none."""
        others = [each for place, each in enumerate(self._families) if place != number]
        return sum(each.partitions.evict() for each in others) > 0

    def _with_room(self, action: Callable[[], object]) -> None:
        with_room(action, (family.partitions for family in self._families))

    # -- snapshot and restore --------------------------------------------------------------

    @property
    def _snapshot_bytes(self) -> int:
        each = (len(family.partitions) * family.groups.image_bytes for family in self._families)
        return sum(each)

    def restore(self, history: Sequence[PastVersion]) -> None:
        self._replaying = True
        super().restore(history)
        for family in self._families:
            # groups of a snapshot are read here, not when the next version needs them
            if len(history) == 1:
                with self._as_known_by(history[0].version):
                    for partition in family.partitions.visit():
                        family.join(partition, self._new)
            family.consolidated = family.panes_read = 0
        self._replaying = False

    def _load(self, past: PastVersion, snapshots: Sequence[SegmentReader]) -> None:
        listed = []
        for reader in snapshots:
            facts = self._position_in(reader)
            extents = extents_of(facts, self._layout)
            facts.pop(EXTENTS, None)
            for number, position in facts.items():
                self._families[int(number)].move_to(position)
            self._slices.widen(self._layout.widened(extents))
            self._widen()
            listed += [
                np.frombuffer(record.payload, dtype=SLICE)
                for record in reader.scan()
                if record.synopsis == SLICES
            ]
        slices = once(listed, SLICE)
        if past.keeps is not None:
            slices = _inside(slices, past.keeps)
        self._directory.append(self._slices.known(slices))
        for number, family in enumerate(self._families):
            records = (group_records(each, number) for each in snapshots)
            family.partitions.import_image(chain.from_iterable(records), past.keeps)

    def _replay(self, past: PastVersion) -> None:
        self._new = self._described(past, PANES, 0)
        self._leaving = [
            self._described(past, CHANGES, number) for number in range(len(self._families))
        ]
        self._take_in(self._new)
        self._inputs = _Replayed(self._shard, past)
        flushed, self._flushed = self._flushed, past.flushed
        with self._as_known_by(past.version):
            for _ in self.on_watermark(past.watermark):
                pass
        self._flushed = flushed

    @contextmanager
    def _as_known_by(self, version: int) -> Iterator[None]:
        """Restrict raw events to those that a past version knew."""
        slices = self._slices
        if not isinstance(slices, OwedSlices):
            yield
            return
        current, slices.version = slices.version, version
        yield
        slices.version = current

    def _described(self, past: PastVersion, lifetime: str, number: int) -> Slices:
        records = records_of(self._shard, past, lifetime)
        found = [self._slices.described(each) for each in records if each.operator == number]
        slices: Slices = np.array(found, dtype=SLICE)
        if past.parents and past.keeps is not None:
            slices = _inside(slices, past.keeps)
        return slices

    @property
    def statistics(self) -> dict[str, Any]:
        families = [family.statistics for family in self._families]
        return {
            "groups": sum(each["groups"] for each in families),
            "partitions": sum(each["partitions"] for each in families),
            "consolidated": sum(each["consolidated"] for each in families),
            "panes_read": sum(each["panes_read"] for each in families),
            "slices": len(self._directory),
            "image_bytes_read": self._families[0].partitions.bytes_read,
            **self._slices.statistics,
        }


def _inside(slices: Slices, keeps: IdRange) -> Slices:
    """Return the slices that may have groups of a range."""
    return slices[keeps.clip(slices["first_id_high"], slices["last_id_high"])[2]]


@dataclass(frozen=True)
class _Needed:
    """Expiry of slices: when their pane has left every window or, if enough, entered each."""

    courses: tuple[WindowSequence, ...]
    watermark: Micros
    enters: bool

    def __call__(self, pane: int) -> Micros:
        ends = (
            course.grid.instant(course.first_end(pane) if self.enters else course.last_end(pane))
            for course in self.courses
        )
        return min(max(*ends, self.watermark + 1), INFINITY)


@dataclass(frozen=True)
class _Replayed:
    """Keys that a past version logged, read on demand; its entries are on the log."""

    shard: Shard
    past: PastVersion

    def entries(self) -> Iterator[ExactRows]:
        yield from ()

    def leaving(self, family: int) -> Iterator[ExactRows]:
        yield from ()

    def tuples(self) -> Iterator[pa.RecordBatch]:
        yield from ()

    def groups(self) -> Iterator[pa.Table]:
        return logged_keys(self.shard, self.past)
