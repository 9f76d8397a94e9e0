"""Windows that move with events: the state is on the log, memory holds one running row per group.

Idea: tuples are written to the log in the order of the stream once the watermark has passed them
(`tuples`). Then they enter the running rows of their groups, and
others leave, either in the order they entered (`moving`) or in each group's own order (`rings`).
Frames of different reach share tuples and rows: a run of tuples is read once to enter all frames,
each has its own cursor for what leaves, and tuples are dropped when no frame needs them. If running
rows exceed the quota, they are split into partitions of `id_high`, and a version passes over them
one by one.

Invariants:
1. Rows are those of the frame over the events in the order of (time, arrival), each emitted by the
   version that makes it final (`test_oracle_every_frame_equals_the_obvious_computation`).
2. Arena and work buffers stay inside the quota (`test_bounded_state_of_ten_times_the_budget`).
3. Restoring a snapshot and replaying the versions after it leads to the same rows; suffixes are
   computed again (`test_crash_restores_from_snapshots`).
4. Frames together emit what each emits alone (`test_oracle_frames_together_equal_frames_alone`)
   and log what the longest logs (`test_bounded_frames_together_log_what_the_longest_logs`).

Cost: see `tuples`, `moving` and `rings`. N frames hold N + 1 chunks of tuples: one that enters, and
one for each frame that leaves. A group's row is kept until no frame needs it.

Limits: with a time slide, an instant without new events since the last one shows nothing: over the
whole stream no group is shown, over each group's own events only those that changed. Rows of one
version are in time order within each partition of groups; with a time slide over each group's own
events, within each group.

References: tuples that are read again to leave (Mendes et al., 2013, section 2); two-stacks.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from functools import cached_property, partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Table
from icestream.core.errors import CheckpointError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.kernels.frames import moving as kernels
from icestream.kernels.grid.groups import LAST as LAST_EVENT
from icestream.kernels.grid.groups import touch
from icestream.operators.folding.columns import TIME
from icestream.operators.folding.fields import EXTENTS, SumExtent, extents_of
from icestream.operators.folding.fold import ID_HIGH_COLUMN
from icestream.operators.frames.layout import SharedLayout
from icestream.operators.frames.lift import (
    ArrivedGroups,
    Lifter,
    bounded_slices,
    in_time,
    pieces,
)
from icestream.operators.frames.moving import MovingPass, distinct, suffix_stacks_of
from icestream.operators.frames.output import FrameOutput
from icestream.operators.frames.rings import RingPass, Rings
from icestream.operators.frames.spec import FrameSpec
from icestream.operators.frames.tuples import (
    ARRIVALS,
    BLOCK,
    BLOCK_BYTES,
    MERGED,
    SETTLED,
    Blocks,
    TupleLog,
)
from icestream.operators.grid.groups import ResidentGroups
from icestream.operators.grid.partitions import Partition, Partitions, with_room
from icestream.operators.grid.records import group_records, log_keys, logged_keys, save_groups
from icestream.operators.logged_operator import LoggedOperator
from icestream.operators.protocol import Emitted, PastVersion, Shard, TupleInputs
from icestream.plan.windows.frame import UNBOUNDED
from icestream.state.identities import IdRange
from icestream.state.keys import KeyCodec
from icestream.state.log.ipc import read_batch, write_table
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import BASE

#: kinds of records of the class BASE besides those of groups; pieces of rings store their frame as
#: `operator`
BLOCKS = {ARRIVALS: 4, SETTLED: 5}
RING_PIECE = 6
POSITION = 7
#: key of a position
EXTRA_WORDS = "extra words"


def buffered_chunks(frames: int) -> int:
    """Return the chunks of tuples and results that an operator of so many frames holds at once."""
    return 2 + 4 * frames


class FrameOperator(LoggedOperator):
    """The frames of one shard."""

    lifetimes: ClassVar[tuple[str, ...]] = (MERGED, ARRIVALS, SETTLED, BASE)
    _position_kind = POSITION
    #: chunks of tuples of each frame in a quota
    _chunks: ClassVar[int] = 32

    def __init__(
        self, specs: Sequence[FrameSpec], shard: Shard, results: Sequence[pa.Schema]
    ) -> None:
        """Attach to the shard's arena.

        Args:
            specs: the frames, over the same keys and inputs.
            shard: where the log and the arena are.
            results: the schemas of the rows to emit, of each frame.
        """
        super().__init__(shard)
        self._specs = specs
        self._frames = [spec.frame for spec in specs]
        self._results = results
        extra_words = [spec.extra_words for spec in specs]
        shared = SharedLayout.of_frames([spec.layout for spec in specs], extra_words)
        self._codec = KeyCodec(specs[0].keys)
        self._lifter = Lifter(shared, self._codec)
        self._position: dict[str, Any] = self._header.setdefault(
            "position",
            {
                "watermark": MINUS_INFINITY,
                #: number of tuples that arrived, and that entered windows
                "arrived": 0,
                "entered": 0,
                #: for each frame: number of tuples that left in order; when all groups are due;
                #: number of flips and rings so far
                "frames": [{"left": 0, "due": None, "flips": 0, "rings": 0} for _ in specs],
                #: words of each frame besides its fields and suffixes
                EXTRA_WORDS: shared.extra_words,
            },
        )
        self._check_words()
        #: fields and rows, with room for the sums of all values seen so far
        self._layout = shared.widened(extents_of(self._position, shared))
        budget = shard.account.budget
        self._rings = [self._ring_file(number) for number in range(len(specs))]
        chunks, parts = buffered_chunks(len(specs)), self._chunks * len(specs)
        rings = sum(each is not None for each in self._rings)
        size = budget.buffers // (chunks + rings) if budget.buffers else budget.total // parts
        #: bytes of tuples held at once, and of result fields buffered before they are emitted
        self._chunk_bytes = max(BLOCK_BYTES, size)
        shard.account.resize(max(chunks * self._chunk_bytes + self._all_ring_bytes, budget.buffers))
        self._groups = ResidentGroups(self._layout, self._codec, shard.arena)
        self._partitions = Partitions(shard.arena, self._groups, 0, shard.account.budget)
        self._tuples = self._tuple_log()
        self._inputs: TupleInputs | None = None
        #: the groups of the batch; None if they are too many
        self._arrived_groups: ArrivedGroups | None = None
        #: the version that is being replayed
        self._past: PastVersion | None = None
        self._released: tuple[int, ...] = ()

    def _check_words(self) -> None:
        """Refuse rows of groups with words that are no longer there."""
        if self._position.get(EXTRA_WORDS) != [spec.extra_words for spec in self._specs]:
            msg = (
                "an earlier release wrote the state of windows that move with events, with rows of "
                "another width: give the query another checkpoint location"
            )
            raise CheckpointError(msg)

    def _tuple_log(self, settled: Callable[[Table], Table] | None = None) -> TupleLog:
        """Return the tuples of the shard; they live as long as the longest frame needs them."""
        ranges = [frame.range for frame in self._frames]
        reaches = [frame.reach for frame in self._frames if frame.range != UNBOUNDED]
        lives = None if None in ranges else max(reaches, default=0)
        size = self._chunk_bytes
        return TupleLog(self._shard, self._layout, size, lives, self._with_room, settled)

    def _ring_file(self, number: int) -> Rings | None:
        frame, layout = self._frames[number], self._layout.frames[number]
        if frame.rows is None or frame.partition != "key":
            return None
        return Rings(self._shard.arena, frame.rows, layout.ring_width, f"rings-{number}")

    @cached_property
    def _longest(self) -> int | None:
        """Return the frame that has every tuple which another has; None if there is none."""
        ranges = [frame.range for frame in self._frames]
        known = [each for each in ranges if each is not None]
        return ranges.index(max(known)) if len(known) == len(ranges) else None

    @property
    def _all_ring_bytes(self) -> int:
        return sum(self._ring_bytes(rings) for rings in self._rings if rings is not None)

    def _ring_bytes(self, rings: Rings) -> int:
        """Return the bytes of the buffer that rings are read into."""
        return max(self._chunk_bytes, 8 * rings.width * rings.length)

    # -- a batch ---------------------------------------------------------------------------

    def on_batch(self, inputs: TupleInputs) -> None:
        """Take a batch; its tuples are written with the watermark."""
        self._inputs = inputs

    def _arriving(self) -> Iterator[tuple[Table, Micros]]:
        """Yield the tuples of the batch, each table with a time that no later tuple is before."""
        if self._inputs is None:
            return
        rows = self._tuples.chunk_rows
        self._arrived_groups = ArrivedGroups(self._codec, rows, self._chunk_bytes // 8)
        batches, earliest = self._inputs.tuples(), self._inputs.earliest()
        for events, bound in bounded_slices(batches, earliest, TIME, rows):
            piece = in_time(events, self._position["watermark"])
            if piece.num_rows:
                self._note_groups(piece)
                yield self._tuples_in(piece), bound

    def _note_groups(self, piece: pa.RecordBatch) -> None:
        """Hold the groups of a piece of the batch, unless those of the batch are many."""
        if self._arrived_groups is not None and not self._arrived_groups.add(piece):
            self._arrived_groups = None

    def _tuples_in(self, batch: pa.RecordBatch) -> Table:
        """Return events as tuples, for whose sums the rows of groups have room."""
        tuples = self._lifter.lift(batch, self._position["arrived"])
        self._position["arrived"] += batch.num_rows
        self._widen(self._layout.extents_in(tuples))
        return tuples

    def _widen(self, extents: Iterable[SumExtent]) -> None:
        """Make room for sums of doubles in the rows of groups."""
        before, self._layout = self._layout, self._layout.widened(extents)
        if self._layout.sums:
            self._position[EXTENTS] = self._layout.bounds
        if self._layout.at is not before.at:
            self._partitions.evict()
            self._groups.widen(self._layout)

    def _with_room(self, action: Callable[[], object]) -> None:
        with_room(action, [self._partitions])

    # -- a watermark -----------------------------------------------------------------------

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Let the tuples before the watermark enter and leave their windows.

        Yields the rows, each batch with the number of its frame.
        """
        watermark = max(watermark, self._position["watermark"])
        if self._past is None:
            before = self._position["watermark"]
            self._schedule.log(self._tuples.settle(before, watermark, self._arriving()))
        snapshot = self._schedule.version_ends(self._snapshot_bytes) and self._past is None
        dues = [position["due"] for position in self._position["frames"]]
        with self._open_rings():
            for partition in self._partitions.visit():
                self._open_groups(partition)
                passes = self._passes(partition)
                yield from self._pass(partition, passes, watermark)
                dues = [each.due for each in passes]
                if snapshot:
                    save_groups(self._shard, self._groups, partition)
            self._inputs = self._arrived_groups = None
            self._settle(watermark, dues)
            self._released = ()
            if snapshot:
                self._save_rest()
        self._shard.seal(BASE)

    def _open_rings(self) -> AbstractContextManager[object]:
        opened = ExitStack()
        for rings in self._rings:
            if rings is not None:
                rings.open()
                opened.enter_context(closing(rings))
        return opened

    def _passes(self, partition: Partition) -> list[MovingPass | RingPass]:
        suffixes = suffix_stacks_of(partition, self._shard.arena, self._layout.frames)
        passes: list[MovingPass | RingPass] = []
        for number, (frame, layout) in enumerate(
            zip(self._frames, self._layout.frames, strict=True)
        ):
            output, position = self._output(number), self._position["frames"][number]
            rings = self._rings[number]
            if rings is None:
                tuples = (self._tuples, partition, suffixes[number])
                moving = MovingPass(frame, layout, self._groups, *tuples, position, output)
                moving.watches = self._longest in (None, number)
                passes.append(moving)
                continue
            rows = self._ring_bytes(rings) // (8 * rings.width)
            buffer = np.empty((rows, rings.width), dtype=np.int64)
            passes.append(RingPass(frame, layout, self._groups, position, output, rings, buffer))
        return passes

    def _output(self, number: int) -> FrameOutput:
        layout, results = self._layout.frames[number], self._results[number]
        return FrameOutput(self._specs[number], layout, self._groups, results, self._chunk_bytes)

    def _pass(
        self, partition: Partition, passes: Sequence[MovingPass | RingPass], watermark: Micros
    ) -> Iterator[Emitted]:
        """Let all settled tuples enter every frame, run by run; close empty groups."""
        begin, end = self._position["entered"], self._tuples.size
        for each in passes:
            each.begin(begin)
        for stretch in self._tuples.read(begin, end, partition, len(passes)):
            slots = self._groups.locate(stretch.tuples)
            for number, each in enumerate(passes):
                yield from ((number, batch) for batch in each.take(stretch, slots))
        for number, each in enumerate(passes):
            yield from ((number, batch) for batch in each.finish(end, watermark))
        self._close(passes, watermark)

    def _close(self, passes: Sequence[MovingPass | RingPass], watermark: Micros) -> None:
        """Close the groups that no frame needs, except those with tuples still to enter."""
        slots = distinct(np.concatenate([each.emptied for each in passes]))
        slots = slots[self._groups.rows[slots, LAST_EVENT] < watermark]
        for each in passes:
            slots = slots[each.done_with(slots)]
        self._groups.release(slots)

    def _settle(self, watermark: Micros, dues: Sequence[Micros | None]) -> None:
        """Record the position of the windows after every partition has passed."""
        entered = self._tuples.size
        positions = self._position["frames"]
        for frame, position, due in zip(self._frames, positions, dues, strict=True):
            left = entered
            if frame.range is not None and frame.range < UNBOUNDED:
                left = self._tuples.place_after(max(MINUS_INFINITY, watermark - frame.reach))
            elif frame.partition == "stream":
                left = max(position["left"], entered - frame.reach)
            position.update(left=left, due=due)
        self._position.update(watermark=watermark, entered=entered)
        self._tuples.drop(min(position["left"] for position in positions))

    def _open_groups(self, partition: Partition) -> None:
        """Open the groups of the batch that belong to a partition, logging those that are new."""
        if self._past is not None:
            self._open_logged(self._past, partition)
        elif self._arrived_groups is not None:
            self._admit(partition, partial(_inside, self._arrived_groups.table(), partition))
        elif self._inputs is not None:
            watermark, rows = self._position["watermark"], self._tuples.chunk_rows
            for batch in pieces(self._inputs.tuples(), watermark, rows):
                self._admit(partition, partial(self._lifter.groups, batch, partition))

    def _open_logged(self, past: PastVersion, partition: Partition) -> None:
        """Open the groups that a past version logged, and record the times of its tuples."""
        for keys in logged_keys(self._shard, past):
            self._admit(partition, partial(_inside, keys, partition))
        for tuples in self._tuples.arrived(partition):
            if len(tuples):
                times = np.ascontiguousarray(tuples[:, -1])
                touch(self._groups.rows, self._groups.locate(tuples), times)

    def _admit(self, partition: Partition, chosen: Callable[[], pa.Table]) -> None:
        """Open groups, which are chosen again whenever the partition is split to make room."""
        keys, fresh = self._partitions.admit(partition, chosen) or (None, ())
        if keys is not None and len(fresh) and self._past is None:
            self._log_keys(keys.take(pa.array(fresh)))

    def _log_keys(self, keys: pa.Table) -> None:
        log_keys(self._shard, keys)

    def standing(self) -> Iterator[Emitted]:
        """Yield the current window of every group, with the time of the group's last event.

        Each batch is paired with the number of its frame. Must not be called during a version.
        """
        for _ in self._partitions.visit():
            for number in range(len(self._specs)):
                output, first = self._output(number), 0
                while first < len(self._groups.rows):
                    first = output.standing(first)
                    slots = output.slots[: output.rows]
                    output.times[: output.rows] = self._groups.rows[slots, LAST_EVENT]
                    if output.rows:
                        yield number, output.take()

    # -- snapshot and restore --------------------------------------------------------------

    @property
    def _snapshot_bytes(self) -> int:
        rings = sum(rings.disk_bytes for rings in self._rings if rings is not None)
        return self._groups.image_bytes * len(self._partitions) + rings

    def _save_rest(self) -> None:
        writer = self._shard.segment(BASE)
        for name, kind in BLOCKS.items():
            self._save_directory(self._tuples.directory(name).records, kind)
        for number, rings in enumerate(self._rings):
            if rings is not None:
                for place, piece in rings.image():
                    writer.append(piece, synopsis=RING_PIECE, group=place, operator=number)
        self._released = self._tuples.release()
        self._save_position({"position": self._position, "sequence": self._tuples.books})

    @property
    def released(self) -> tuple[int, ...]:
        return self._released

    def _load(self, past: PastVersion, snapshots: Sequence[SegmentReader]) -> None:
        with self._open_rings():
            keeps = past.keeps
            if any(frame.partition == "stream" for frame in self._frames):
                # all events are in the first shard, whatever their ids are
                keeps = None
                if past.parents:
                    snapshots = snapshots[: past.parents[0].low == 0]
            self._tuples.keep(keeps)
            if past.parents and keeps is not None:
                self._take_over(snapshots, keeps)
            else:
                for reader in snapshots:
                    self._load_rest(reader)
                    self._partitions.import_image(group_records(reader), keeps)
        self._position["watermark"] = max(self._position["watermark"], past.watermark)

    def _load_rest(self, reader: SegmentReader) -> None:
        for name, blocks in self._load_facts(reader):
            self._tuples.directory(name).append(blocks)
        for record in reader.scan():
            if record.synopsis == RING_PIECE:
                rings = self._rings[record.operator]
                assert rings is not None
                rings.load(record.group, record.payload)

    def _load_facts(self, reader: SegmentReader) -> Iterator[tuple[str, Blocks]]:
        """Yield the directories of blocks of a snapshot; move to its position."""
        facts = self._position_in(reader)
        self._position.clear()
        self._position.update(facts["position"])
        self._check_words()
        self._widen(extents_of(self._position, self._layout))
        self._tuples.books.update(facts["sequence"])
        names = {synopsis: name for name, synopsis in BLOCKS.items()}
        for record in reader.scan():
            if record.synopsis in names:
                blocks = np.frombuffer(record.payload, dtype=BLOCK)
                yield names[record.synopsis], self._tuples.known(blocks)

    def _take_over(self, snapshots: Sequence[SegmentReader], keeps: IdRange) -> None:
        """Take over the groups of parents in a range of ids; rings get new numbers."""
        blocks: dict[str, list[Blocks]] = {ARRIVALS: [], SETTLED: []}
        positions, passed = [], list[int]()
        for reader in snapshots:
            for name, listed in self._load_facts(reader):
                blocks[name].append(listed)
            positions.append(copy.deepcopy(self._position))
            passed += self._tuples.books["passed"]
        frames = self._position["frames"]
        for number, position in enumerate(frames):
            parents = [each["frames"][number] for each in positions]
            dues = [each["due"] for each in parents if each["due"] is not None]
            flips = max(each["flips"] for each in parents)
            position.update(due=dues[0] if dues else None, flips=flips, rings=0)
        self._position["arrived"] = max(each["arrived"] for each in positions)
        if len(snapshots) == 1:
            for name, parts in blocks.items():
                for each in parts:
                    self._tuples.directory(name).append(each)
        else:
            self._tuples.books.update(dropped=0, passed=passed)
            self._tuples.take_over(blocks[ARRIVALS], blocks[SETTLED])
            self._settle(self._position["watermark"], [each["due"] for each in frames])
            # what was written again is known to no later version but by a snapshot
            self._schedule.demand()
        rows = (self._taken_over(reader, keeps) for reader in snapshots)
        self._partitions.import_image(chain.from_iterable(rows), keeps)

    def _taken_over(
        self, reader: SegmentReader, keeps: IdRange
    ) -> Iterator[tuple[memoryview, memoryview]]:
        """Yield rows and keys of the groups of a parent in a range, and copy their rings."""
        with ExitStack() as stack:
            old: dict[int, Rings] = {}
            for number, rings in enumerate(self._rings):
                if rings is not None:
                    name = f"rings-{number}-parent"
                    old[number] = Rings(self._shard.arena, rings.length, rings.width, name)
                    old[number].open()
                    stack.callback(os.unlink, self._shard.arena.path(name))
                    stack.enter_context(closing(old[number]))
            for record in reader.scan() if old else ():
                if record.synopsis == RING_PIECE:
                    old[record.operator].load(record.group, record.payload)
            for rows, keys in group_records(reader):
                names = read_batch(keys)
                table = self._groups.unpacked(rows, names.num_rows).copy()
                mine = keeps.holds(np.ascontiguousarray(table[:, 0]).view(np.uint64))
                table = table[mine]
                for number, rings in old.items():
                    self._move_rings(number, rings, table)
                if len(table):
                    kept = names.filter(pa.array(mine))
                    yield self._groups.packed(table), memoryview(write_table(kept))

    def _move_rings(self, number: int, old: Rings, rows: Table) -> None:
        """Copy the rings of groups, and number them anew."""
        position, rings = self._position["frames"][number], self._rings[number]
        assert rings is not None
        at = self._layout.frames[number].extras_at + kernels.MARK
        ring = np.zeros((rings.length, rings.width), dtype=np.int64)
        for row in np.flatnonzero(rows[:, at] >= 0).tolist():
            count = min(int(rows[row, self._layout.frames[number].extras_at]), rings.length)
            if count:
                old.read(int(rows[row, at]), 0, ring[:count])
                rings.write(position["rings"], 0, ring[:count])
            rows[row, at] = position["rings"]
            position["rings"] += 1

    def _replay(self, past: PastVersion) -> None:
        rows = self._tuples.replay(past)
        self._schedule.log(rows * self._layout.tuple_bytes)
        # those that waited are counted again: numbers only have to grow
        self._position["arrived"] += rows
        for tuples in self._tuples.arrived() if self._layout.sums else ():
            self._widen(self._layout.extents_in(tuples))
        self._past = past
        for _ in self.on_watermark(past.watermark):
            pass
        self._past = None

    @property
    def statistics(self) -> dict[str, Any]:
        return {
            "groups": self._partitions.groups,
            "partitions": len(self._partitions),
            **self._tuples.reads,
        }


def _inside(groups: pa.Table, partition: Partition) -> pa.Table:
    """Return the groups that belong to a partition."""
    if partition.whole:
        return groups
    return groups.filter(pa.array(partition.holds(groups.column(ID_HIGH_COLUMN).to_numpy())))
