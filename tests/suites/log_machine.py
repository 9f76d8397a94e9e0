"""A hypothesis state machine that uses the log as a store, compared with a plain dict.

Idea:
    Groups below `FOREVER` never expire, the others get expiries that only move forward. The dict
    has every record of every group. Whatever is done (append, finish, expire, crash and reopen), a
    chain must consist of the newest records in the dict, and may lack only expired ones.

Use:
    Subclass `LogMachine`, set `codec` and `block_bytes` if needed, and run its `TestCase`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.state.log.format import NO_MARKER, Record, SegmentInfo, ordinal_of
from icestream.state.log.reader import Log, SegmentReader
from icestream.state.log.writer import SegmentWriter
from icestream.testing.simulated_disk import CrashMode, SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icestream.state.files import Files

#: groups below this number never expire
FOREVER = 3
GROUPS = 6
FOLDER = "log"


class LogMachine(RuleBasedStateMachine):
    """Does to a log what a shard does over many versions, and the same to a dict."""

    codec: str | None = None
    #: small, so that segments have several blocks
    block_bytes: int = 64

    def __init__(self) -> None:
        """Start with an empty log on an empty disk."""
        super().__init__()
        self.files: Files = SimulatedDisk()
        self.log = Log(self.files, FOLDER, {}, open_limit=2)
        self.ordinals = 0
        self.horizon = MINUS_INFINITY
        self.clock = 0
        #: ordinals whose segments have expired
        self.expired: set[int] = set()
        #: group -> its records, newest first, as (payload, expiry); committed, and including open
        self.committed: dict[int, list[tuple[bytes, int]]] = {}
        self.model: dict[int, list[tuple[bytes, int]]] = {}
        #: group -> its newest marker; committed, and including open segments
        self.committed_heads: dict[int, int] = {}
        self.heads: dict[int, int] = {}
        #: one open segment per lifetime class, by whether it expires
        self.writers: dict[bool, SegmentWriter] = {}

    def new_writer(self) -> SegmentWriter:
        """Open the next segment."""
        ordinal, self.ordinals = self.ordinals, self.ordinals + 1
        return SegmentWriter(
            self.files,
            f"{FOLDER}/{ordinal:08d}",
            ordinal,
            codec=self.codec,
            block_bytes=self.block_bytes,
        )

    @rule(
        group=st.integers(0, GROUPS - 1),
        payload=st.binary(max_size=40) | st.binary(min_size=60, max_size=200),
        later=st.integers(0, 3),
    )
    def append(self, group: int, payload: bytes, later: int) -> None:
        """Append a record to its lifetime class's open segment."""
        expires = group >= FOREVER
        if expires not in self.writers:
            self.writers[expires] = self.new_writer()
        self.clock += later
        expiry = self.clock if expires else INFINITY
        self.heads[group] = self.writers[expires].append(
            payload, group=group, expiry=expiry, back=self.heads.get(group, NO_MARKER)
        )
        self.model.setdefault(group, []).insert(0, (payload, expiry))

    @rule()
    def commit(self) -> None:
        """Finish the open segments: their records become readable and survive crashes."""
        for writer in self.writers.values():
            self.log.add(writer.finish())
        self.writers.clear()
        self.committed = {group: list(records) for group, records in self.model.items()}
        self.committed_heads = dict(self.heads)

    @rule(ahead=st.integers(0, 4))
    def expire(self, ahead: int) -> None:
        """Move the horizon and unlink what it passed; later records expire after it."""
        self.horizon = max(self.horizon, self.clock - ahead)
        infos = self.log.segments
        for info in [each for each in infos.values() if each.expiry <= self.horizon]:
            self.files.unlink(f"{FOLDER}/{info.name}")
            self.expired.add(info.ordinal)
            del infos[info.ordinal]
        self.files.sync_folder(FOLDER)
        self.log.close()
        self.log = Log(self.files, FOLDER, infos, open_limit=2)

    @rule(mode=st.sampled_from(["drop", "tear", "keep"]), tear=st.integers(0, 100))
    def crash_and_reopen(self, mode: CrashMode, tear: int) -> None:
        """Lose the process, keep what was committed, and restart from it."""
        written = json.dumps([info.to_json() for info in self.log.segments.values()])
        assert isinstance(self.files, SimulatedDisk)
        self.files = self.files.after_crash(mode, tear=tear)
        infos = [SegmentInfo.from_json(value) for value in json.loads(written)]
        self.log = Log(
            self.files,
            FOLDER,
            {info.ordinal: info for info in infos},
            open_limit=2,
        )
        self.writers.clear()
        self.model = {group: list(records) for group, records in self.committed.items()}
        self.heads = dict(self.committed_heads)

    @invariant()
    def chains_are_what_the_dict_remembers(self) -> None:
        """Every chain has the newest records of its group and lacks only expired ones."""
        for group, records in self.committed.items():
            found = list(self._chain(self.committed_heads[group]))
            assert all(record.group == group for record in found)
            stored = [(bytes(record.payload), record.expiry) for record in found]
            assert stored == records[: len(stored)]
            assert all(expiry <= self.horizon for _, expiry in records[len(stored) :])

    def _chain(self, marker: int) -> Iterator[Record]:
        """Follow a chain until it ends or leads into a segment that has expired."""
        while marker != NO_MARKER and ordinal_of(marker) not in self.expired:
            record = next(self.log.read_many((marker,)))
            yield record
            marker = record.back

    @invariant()
    def segments_hold_what_their_infos_say(self) -> None:
        """Scanning a segment gives the recorded number of records, up to its expiry."""
        for info in self.log.segments.values():
            reader = SegmentReader(self.files, f"{FOLDER}/{info.name}", info=info)
            expiries = [record.expiry for record in reader.scan()]
            reader.close()
            assert len(expiries) == info.records
            assert max(expiries, default=MINUS_INFINITY) == info.expiry
