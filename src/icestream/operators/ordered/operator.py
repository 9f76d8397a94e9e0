"""Windows that move with events: the state is on the log, memory holds one running row per group.

Idea: a batch's tuples are written to the log as they arrive, and again in the order of the stream
once the watermark has passed them (`tuples`). Then they enter the running rows of their groups, and
others leave, either in the order they entered (`moving`) or each group's own (`rings`). Where
running rows exceed the quota they are split in partitions of hi, and a version passes over the
partitions one by one.

Invariants:
1. Rows are those of the frame over the events in the order of (time, arrival), each emitted by the
   version that settles it (`test_oracle_every_frame_equals_the_obvious_computation`).
2. Arena and work buffers stay inside the quota (`test_bounded_state_of_ten_times_the_budget`).
3. Restoring a snapshot and replaying the versions after it leads to the same rows; fronts are made
   anew, so float sums agree to 106 bits (`test_crash_restores_from_snapshots`).

Cost: see `tuples`, `moving` and `rings`.

Limits: with a slide of time, an instant before which no event came since the last one shows
nothing again: of the whole stream no group is shown, of each group's own events those that
changed. Rows of one version come in the order of time within each partition of groups; with a
slide of time over each group's own events, within each group.

References: tuples that are read again to leave (Mendes et al., 2013, section 2); two-stacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.kernels.windows.groups import LAST as LAST_EVENT
from icestream.kernels.windows.groups import touch
from icestream.kernels.words import Table
from icestream.operators.fold import HI, LAST, LO
from icestream.operators.groups import Groups
from icestream.operators.ordered.frame import OrderedSpec
from icestream.operators.ordered.lift import Lifter, pieces, within
from icestream.operators.ordered.moving import MovingPass
from icestream.operators.ordered.output import Output
from icestream.operators.ordered.rings import RingPass, Rings
from icestream.operators.ordered.tuples import ARRIVALS, BLOCK_BYTES, SETTLED, TupleLog
from icestream.operators.partitions import Partition, Partitions
from icestream.operators.protocol import Inputs, PastVersion, Shard
from icestream.state.budget import Refused, shortage
from icestream.state.keys import KeyCodec
from icestream.state.log.ipc import read_table, write_table
from icestream.state.log.reader import SegmentReader
from icestream.state.snapshots import SnapshotSchedule
from icestream.state.versions import BASE

#: kinds of records of the class BASE
NEW_KEYS = 1
GROUP_ROWS = 2
GROUP_KEYS = 3
BLOCKS = {ARRIVALS: 4, SETTLED: 5}
RING_PIECE = 6
POSITION = 7


class OrderedOperator:
    """Windows of one shard that move with events."""

    lifetimes: ClassVar[tuple[str, ...]] = (ARRIVALS, SETTLED, BASE)

    def __init__(self, spec: OrderedSpec, shard: Shard, results: pa.Schema) -> None:
        """Attach to the shard's arena; `results` is the schema of the rows to emit."""
        self._spec = spec
        self._shard = shard
        self._results = results
        self._layout = spec.layout
        self._codec = KeyCodec(spec.keys)
        self._lifter = Lifter(self._layout, self._codec)
        header = shard.arena.header
        self._position: dict[str, Any] = header.setdefault(
            "position",
            {
                "watermark": MINUS_INFINITY,
                #: tuples that arrived, that entered windows, that left them in order
                "arrived": 0,
                "entered": 0,
                "left": 0,
                #: when all groups are due; flips and rings so far
                "due": None,
                "flips": 0,
                "rings": 0,
            },
        )
        self._schedule = SnapshotSchedule(header)
        quota = shard.account.budget.total
        #: bytes of tuples held at once, and of result fields before they are handed on
        self._chunk_bytes = max(BLOCK_BYTES, quota // 64)
        self._rings = self._ring_file()
        ring_bytes = 0
        if self._rings is not None:
            ring_bytes = max(self._chunk_bytes, 8 * self._rings.width * self._rings.length)
        shard.account.resize(6 * self._chunk_bytes + ring_bytes)
        self._ring_bytes = ring_bytes
        self._groups = Groups(self._layout, self._codec, shard.arena)
        self._partitions = Partitions(
            shard.arena, self._groups, self._layout.front_words, shard.account.budget
        )
        self._tuples = TupleLog(
            shard, self._layout, self._chunk_bytes, spec.frame.range, self._with_room
        )
        self._inputs: Inputs | None = None
        #: the version that is replayed
        self._past: PastVersion | None = None
        self._released: tuple[int, ...] = ()

    def _ring_file(self) -> Rings | None:
        frame, layout = self._spec.frame, self._layout
        if frame.rows is None or frame.partition != "key":
            return None
        return Rings(self._shard.arena, frame.rows, layout.field_words + layout.front_words)

    # -- a batch ---------------------------------------------------------------------------

    def on_batch(self, inputs: Inputs) -> None:
        """Write the tuples of a batch to the log; their groups are opened with the watermark."""
        self._inputs = inputs
        self._schedule.log(self._tuples.arrive(self._lifted(inputs)))

    def _lifted(self, inputs: Inputs) -> Iterator[Table]:
        for batch in self._pieces(inputs):
            yield self._lifter.lift(batch, self._position["arrived"])
            self._position["arrived"] += batch.num_rows

    def _pieces(self, inputs: Inputs) -> Iterator[pa.RecordBatch]:
        return pieces(inputs.tuples(), self._position["watermark"], self._tuples.chunk_rows)

    def _with_room(self, action: Callable[[], object]) -> None:
        """Do what needs memory for the directories; groups leave if there is not enough."""
        try:
            action()
        except Refused:
            if not self._partitions.evict():
                raise
            action()

    # -- a watermark -----------------------------------------------------------------------

    def on_watermark(self, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Let the tuples before the watermark enter and leave their windows; yield the rows."""
        snapshot = self._schedule.version_ends(self._snapshot_bytes) and self._past is None
        watermark = max(watermark, self._position["watermark"])
        if self._past is None:
            self._tuples.settle(self._position["watermark"], watermark)
        due = self._position["due"]
        with self._open_rings():
            for partition in self._partitions.visit():
                self._open_groups(partition)
                moving = self._pass(partition)
                yield from moving.run(watermark)
                due = moving.due
                if snapshot:
                    self._save_groups(partition)
            self._inputs = None
            self._settle(watermark, due)
            self._released = ()
            if snapshot:
                self._save_rest()
        self._shard.seal(BASE)

    def _open_rings(self) -> AbstractContextManager[object]:
        if self._rings is None:
            return nullcontext()
        self._rings.open()
        return closing(self._rings)

    def _pass(self, partition: Partition) -> MovingPass | RingPass:
        output = Output(self._spec, self._groups, self._results, self._chunk_bytes)
        common = (self._spec, self._groups, self._tuples, partition, self._position, output)
        if self._rings is None:
            return MovingPass(*common)
        rows = self._ring_bytes // (8 * self._rings.width)
        buffer = np.empty((rows, self._rings.width), dtype=np.int64)
        return RingPass(*common, self._rings, buffer)

    def _settle(self, watermark: Micros, due: Micros | None) -> None:
        """Note where the windows stand once every partition has passed."""
        frame, position = self._spec.frame, self._position
        entered = left = self._tuples.size
        if frame.range is not None:
            left = self._tuples.place_after(max(MINUS_INFINITY, watermark - frame.range))
        elif frame.partition == "stream":
            left = max(position["left"], entered - frame.reach)
        position.update(watermark=watermark, entered=entered, left=left, due=due)
        self._tuples.drop(left)

    def _open_groups(self, partition: Partition) -> None:
        """Open the groups of the batch that belong to a partition, logging those that are new."""
        if self._past is not None:
            self._open_logged(self._past, partition)
        elif self._inputs is not None:
            for batch in self._pieces(self._inputs):
                self._admit(partition, partial(self._lifter.groups, batch, partition))

    def _open_logged(self, past: PastVersion, partition: Partition) -> None:
        """Open the groups that a past version logged, and note the times of its tuples."""
        for keys in _logged_keys(self._shard, past):
            self._admit(partition, partial(_inside, keys, partition))
        for tuples in self._tuples.arrived(partition):
            if len(tuples):
                times = np.ascontiguousarray(tuples[:, -1])
                touch(self._groups.rows, self._groups.locate(tuples), times)

    def _admit(self, partition: Partition, chosen: Callable[[], pa.Table]) -> None:
        """Open groups, chosen anew whenever the partition is split to make room."""
        while (keys := chosen()).num_rows:
            hi, lo, last = (keys.column(name).to_numpy() for name in (HI, LO, LAST))
            try:
                fresh = self._groups.admit(hi, lo, last, keys)
            except Refused as refused:
                if not self._partitions.split(partition):
                    raise shortage(self._shard.account.budget, refused) from refused
                continue
            if len(fresh) and self._past is None:
                self._shard.segment(BASE).append(
                    write_table(keys.take(pa.array(fresh))), synopsis=NEW_KEYS, rows=len(fresh)
                )
            return

    def standing(self) -> Iterator[pa.RecordBatch]:
        """Yield the window of every group as it stands, under the time of the group's last event.

        Not while a version is at work.
        """
        for _ in self._partitions.visit():
            output = Output(self._spec, self._groups, self._results, self._chunk_bytes)
            first = 0
            while first < len(self._groups.rows):
                first, count = self._groups.emit(first, output.fields, output.slots, 0)
                slots = output.slots[:count]
                times = np.ascontiguousarray(self._groups.rows[slots, LAST_EVENT])
                if count:
                    yield output.batch(output.fields[:count], slots, times)

    # -- snapshot and restore --------------------------------------------------------------

    @property
    def _snapshot_bytes(self) -> int:
        """Return about how many bytes a snapshot takes."""
        rings = 0 if self._rings is None else self._rings.disk_bytes
        return self._shard.arena.bytes * len(self._partitions) + rings

    def _save_groups(self, partition: Partition) -> None:
        writer = self._shard.segment(BASE)
        for rows, keys in self._groups.image(partition.low, partition.high):
            writer.append(rows, synopsis=GROUP_ROWS, rows=len(rows))
            writer.append(write_table(keys), synopsis=GROUP_KEYS, rows=len(rows))

    def _save_rest(self) -> None:
        writer = self._shard.segment(BASE)
        for name, blocks in self._tuples.image():
            writer.append(blocks, synopsis=BLOCKS[name])
        if self._rings is not None:
            for place, piece in self._rings.image():
                writer.append(piece, synopsis=RING_PIECE, group=place)
        self._released = self._tuples.release()
        facts = {"position": self._position, "sequence": self._tuples.books}
        writer.append(json.dumps(facts).encode(), synopsis=POSITION)
        self._schedule.take()

    @property
    def took_snapshot(self) -> bool:
        """Tell whether the version just written stands without those before it."""
        return self._schedule.taken

    @property
    def released(self) -> tuple[int, ...]:
        """Return ordinals of segments that nothing needs although their expiry has not passed."""
        return self._released

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Load the snapshot that begins `history`, if it does, and replay the versions after it."""
        for past in history:
            if not self._load(past):
                self._replay(past)

    def _load(self, past: PastVersion) -> bool:
        for lifetime, info in past.segments:
            if lifetime != BASE:
                continue
            with closing(self._shard.reader(info)) as reader:
                if (reader.directory["synopsis"] == POSITION).any():
                    with self._open_rings():
                        self._load_rest(reader)
                    self._partitions.import_image(_group_records(reader))
                    self._schedule.resume(0, 0)
                    return True
        return False

    def _load_rest(self, reader: SegmentReader) -> None:
        names = {synopsis: name for name, synopsis in BLOCKS.items()}
        for record in reader.scan():
            if record.synopsis in names:
                self._tuples.load(names[record.synopsis], record.payload)
            elif record.synopsis == RING_PIECE and self._rings is not None:
                self._rings.load(record.group, record.payload)
            elif record.synopsis == POSITION:
                facts = json.loads(bytes(record.payload))
                self._position.update(facts["position"])
                self._tuples.books.update(facts["sequence"])

    def _replay(self, past: PastVersion) -> None:
        size = self._tuples.replay(past)
        self._schedule.log(size)
        self._position["arrived"] += size // self._layout.tuple_bytes
        self._past = past
        for _ in self.on_watermark(past.watermark):
            pass
        self._past = None

    @property
    def statistics(self) -> dict[str, Any]:
        """Return what the progress report tells of this shard."""
        return {
            "groups": self._partitions.groups,
            "partitions": len(self._partitions),
            "blocks": self._tuples.blocks,
        }


def _logged_keys(shard: Shard, past: PastVersion) -> Iterator[pa.Table]:
    """Yield the keys that a past version logged."""
    for lifetime, info in past.segments:
        if lifetime == BASE:
            with closing(shard.reader(info)) as reader:
                for record in reader.scan():
                    if record.synopsis == NEW_KEYS:
                        yield read_table(record.payload)


def _group_records(reader: SegmentReader) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield rows and keys of a snapshot's groups, chunk by chunk."""
    rows = memoryview(b"")
    for record in reader.scan():
        if record.synopsis == GROUP_ROWS:
            rows = record.payload
        elif record.synopsis == GROUP_KEYS:
            yield rows, record.payload


def _inside(keys: pa.Table, partition: Partition) -> pa.Table:
    return keys.filter(pa.array(within(keys.column(HI).to_numpy(), partition)))
