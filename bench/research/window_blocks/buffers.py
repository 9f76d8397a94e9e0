"""The blocks that are in memory, and their transfers to disk and back.

Idea: frames hold the blocks of the pool and the blocks in transfer: `behind` blocks being written
while newer tuples arrive, and `ahead` blocks read before they are needed. A thread moves each of
these, so all their requests run at once, and computation waits only when the disk is slower. If
both are 0, every transfer is synchronous and the frames are exactly the pool.

Invariants:
1. There are `pool + behind + ahead` frames, one more where an exchange reads before it writes,
   and no other memory for tuples (`test_bounded_frames_are_all_there_is`).
2. Reading a block that is still being written waits for the write
   (`test_a_block_on_its_way_out_comes_back`).
3. An error in a thread is raised by the call that needs the block, or by the next call
   (`test_a_full_disk_is_told_by_the_next_call`).

Cost: one write for an evicted block that has no copy on disk, one read for one that comes back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

from bench.research.window_blocks.layout import BlockLayout, Frames
from bench.research.window_blocks.store import BlockStore, move_in, move_out
from bench.research.window_blocks.worker_thread import WorkerThread


@dataclass(slots=True)
class Counters:
    """Requests, counted where they are decided; the unit is blocks."""

    #: blocks begun
    begun: int = 0
    #: blocks that left memory: write requests if every one is written
    evicted: int = 0
    #: blocks written: those that had no copy on disk
    written: int = 0
    #: blocks read back
    fetched: int = 0
    #: of these, blocks that were read ahead
    ahead: int = 0

    @property
    def rewriting(self) -> int:
        """Requests of a store that writes every evicted block."""
        return self.evicted + self.fetched

    @property
    def writing_once(self) -> int:
        """Requests of a store that writes a block once."""
        return self.written + self.fetched


class Buffers:
    """Frames, the blocks in them, and the threads that move blocks."""

    def __init__(
        self,
        layout: BlockLayout,
        store: BlockStore,
        pool: int,
        *,
        behind: int = 0,
        ahead: int = 0,
        spare: int = 0,
    ) -> None:
        """Allocate frames for `pool` blocks, for transfers, and `spare` ones for exchanges."""
        self.store = store
        self.frames = Frames(layout, pool + behind + ahead + spare)
        self.counters = Counters()
        self._free = list(range(self.frames.count - 1, -1, -1))
        self._frame: dict[int, int] = {}
        #: blocks in transfer, oldest first, each with its frame
        self._writing: deque[tuple[int, int]] = deque()
        self._reading: deque[tuple[int, int]] = deque()
        #: threads: the next one to use comes first, busy ones are at the end
        self._writers = deque(WorkerThread(f"window-block-writer-{i}") for i in range(behind))
        self._readers = deque(WorkerThread(f"window-block-reader-{i}") for i in range(ahead))

    def frame(self, block: int) -> int:
        """Return the frame of a block that is in memory."""
        return self._frame[block]

    def begin(self, block: int) -> int:
        """Give an empty block a frame."""
        self.counters.begun += 1
        self._frame[block] = frame = self._free.pop()
        return frame

    def release(self, block: int) -> None:
        """Drop a block that is no longer needed, in memory and on disk."""
        self._free.append(self._frame.pop(block))
        if block in self.store:
            self.store.forget(block)

    def evict(self, block: int) -> None:
        """Evict a block; it is written unless a copy is on disk."""
        self.counters.evicted += 1
        frame = self._frame.pop(block)
        if block in self.store:
            self._free.append(frame)
            return
        self._write(block, frame, None)

    def fetch(self, block: int) -> int:
        """Bring a block back and return its frame."""
        self.counters.fetched += 1
        if self._reading and self._reading[0][0] == block:
            self.counters.ahead += 1
            self._readers[-len(self._reading)].collect()
            frame = self._reading.popleft()[1]
        else:
            self._settle(block)
            frame = self._free.pop()
            move_in(self.frames, frame, block, self.store.find(block))
        self._frame[block] = frame
        if self.store.exclusive:
            self.store.forget(block)
        return frame

    def exchange(self, victim: int, wanted: int) -> int:
        """Evict one block and bring another back; its slot is read, then reused for the victim."""
        if not self.store.exclusive:
            self.evict(victim)
            return self.fetch(wanted)
        self._settle(wanted)
        frame = self._free.pop()
        move_in(self.frames, frame, wanted, self.store.find(wanted))
        self.counters.fetched += 1
        self.counters.evicted += 1
        self._frame[wanted] = frame
        self._write(victim, self._frame.pop(victim), wanted)
        return frame

    def read_ahead(self, upcoming: range) -> None:
        """Start reading the blocks needed next that are on disk, while there are free frames."""
        for block in upcoming[len(self._reading) : len(self._readers)]:
            if any(block == writing for writing, _ in self._writing):
                return
            frame = self._free.pop()
            self._reading.append((block, frame))
            self._readers[0].give(
                partial(move_in, self.frames, frame, block, self.store.find(block))
            )
            self._readers.rotate(-1)

    def close(self) -> None:
        """Wait for the threads and delete the files."""
        for lane in (*self._writers, *self._readers):
            lane.close()
        self.store.close()

    def _write(self, block: int, frame: int, instead: int | None) -> None:
        self.counters.written += 1
        place = self.store.assign(block, instead)
        if not self._writers:
            move_out(self.frames, frame, block, place)
            self._free.append(frame)
            return
        if len(self._writing) == len(self._writers):
            self._written()
        self._writing.append((block, frame))
        self._writers[0].give(partial(move_out, self.frames, frame, block, place))
        self._writers.rotate(-1)

    def _written(self) -> None:
        """Wait for the oldest write and free its frame."""
        self._writers[-len(self._writing)].collect()
        self._free.append(self._writing.popleft()[1])

    def _settle(self, block: int) -> None:
        """Wait until a block is on disk."""
        while any(block == writing for writing, _ in self._writing):
            self._written()
