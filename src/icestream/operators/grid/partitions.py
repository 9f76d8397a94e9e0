"""Partitions of a shard's groups: the part that is in memory, and the images of the rest.

Idea: while the groups fit into their quota, there is one partition and it stays in the arena. When
the budget refuses memory, the range of `id_high` is halved. From then on a version visits the
halves one after the other: it evicts one to an image on local disk and loads the next. Several
partitions may share an image; each loads only the groups in its own range. Where two neighbours fit
into half of the memory and have no stacks of suffixes, the first takes the second in when it is
visited.

Invariants:
1. Partitions cover every id_high of the shard once
   (`test_partitions_always_cover_every_group_once`).
2. A visit sees every group in memory once, however often the budget forces a split
   (`test_bounded_a_visit_sees_every_group_under_any_budget`).
3. Partitions are joined again when groups shrink or memory grows
   (`test_neighbours_that_fit_are_joined`).

Cost: a visit reads and writes the groups of all partitions but one; it is free while there is one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints, Mask, Table
from icestream.core.times import MINUS_INFINITY
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN, LAST
from icestream.operators.grid.groups import ID_HIGH_END, ResidentGroups
from icestream.operators.grid.slices import Slices
from icestream.operators.grid.suffix_stack import SuffixStack
from icestream.state.arena import Arena
from icestream.state.budget import Budget, Refused, shortage
from icestream.state.files import LocalFiles
from icestream.state.identities import IdRange
from icestream.state.log.ipc import read_batch, write_table
from icestream.state.log.reader import SegmentReader
from icestream.state.log.writer import SegmentWriter

_ROWS = 0
_KEYS = 1
#: key of the bytes of images read since the arena was created
_READ = "image_bytes_read"
#: a range of id_high this narrow is not split further
_NARROW = 2**16


class _Fact:
    """A number stored among the facts of a partition."""

    def __set_name__(self, owner: type[Partition], name: str) -> None:
        self._name = name

    def __get__(self, partition: Partition, owner: type[Partition]) -> int:
        return int(partition.facts[self._name])

    def __set__(self, partition: Partition, value: int) -> None:
        partition.facts[self._name] = value


class Partition:
    """A range of id_high and the state of its groups; its facts are in the arena's header."""

    #: first id_high of the range, and its exclusive end
    low = _Fact()
    high = _Fact()
    #: all slices before this pane have suffixes on the stack
    flipped = _Fact()
    #: the next stack covers slices up to the first pane; those from the second on are done
    turning = _Fact()
    turned = _Fact()
    #: start of the window at which building it begins
    since = _Fact()

    def __init__(
        self, facts: dict[str, Any], folder: Arena, suffix_words: int, scope: str = ""
    ) -> None:
        self.facts = facts
        path = folder.path(f"{scope}fronts-{facts['low']:x}")
        self.suffixes = SuffixStack(path, suffix_words, facts["fronts"])
        self.next = SuffixStack(f"{path}-next", suffix_words, facts["next"])

    @property
    def whole(self) -> bool:
        return self.low == 0 and self.high == ID_HIGH_END

    def holds(self, id_high: Ids) -> Mask:
        return IdRange(self.low, self.high).holds(id_high)

    def meets(self, slices: Slices) -> Mask:
        """Return which slices may have entries of its groups."""
        own = IdRange(self.low, self.high)
        return own.clip(slices["first_id_high"], slices["last_id_high"])[2]

    @property
    def stale(self) -> bool:
        """Return whether the suffixes were lost and must be rebuilt before they are used."""
        return bool(self.facts["stale"])

    @stale.setter
    def stale(self, lost: bool) -> None:
        self.facts["stale"] = lost

    def note(self) -> None:
        """Record the sizes of the stacks."""
        self.facts.update(fronts=self.suffixes.size, next=self.next.size)


class Partitions:
    """The partitions of one shard; one at a time is in memory."""

    def __init__(
        self,
        arena: Arena,
        groups: ResidentGroups,
        suffix_words: int,
        budget: Budget,
        scope: str = "",
        relieve: Callable[[], bool] = lambda: False,
    ) -> None:
        """Attach to the partitions in the arena's header, or start with one.

        `relieve` frees memory that other state holds and returns whether there was any.
        """
        self._scope = scope
        self._relieve = relieve
        self._arena = arena
        self._groups = groups
        self._suffix_words = suffix_words
        self._budget = budget
        self._files = LocalFiles()
        header = arena.header
        self._list, self._resident = f"{scope}partitions", f"{scope}resident"
        header.setdefault(self._list, [_facts(0, ID_HIGH_END, None, stale=False)])
        header.setdefault(self._resident, 0)
        self._waiting: list[dict[str, Any]] = []

    @property
    def _all(self) -> list[dict[str, Any]]:
        facts: list[dict[str, Any]] = self._arena.header[self._list]
        return facts

    def __len__(self) -> int:
        return len(self._all)

    @property
    def bytes_read(self) -> int:
        """Return the bytes of images read since the arena was created."""
        return int(self._arena.header.get(_READ, 0))

    @property
    def groups(self) -> int:
        """Return the groups of all partitions, as of their last visit."""
        return sum(facts["groups"] for facts in self._all)

    def visit(self) -> Iterator[Partition]:
        """Yield every partition once, each in memory while it is yielded."""
        resident = self._arena.header[self._resident]
        self._waiting = sorted(self._all, key=lambda facts: bool(facts["low"] != resident))
        while self._waiting:
            partition = self._enter(self._waiting.pop(0))
            yield partition
            partition.note()
            partition.facts["groups"] = len(self._groups)

    def admit(
        self, partition: Partition, chosen: Callable[[], pa.Table]
    ) -> tuple[pa.Table, Ints] | None:
        """Open groups of the partition in memory; return their keys, and which of them are new.

        They are chosen again whenever the partition is split to make room; None if there are none.
        """
        while (keys := chosen()).num_rows:
            id_high, id_low, last = (
                keys.column(name).to_numpy() for name in (ID_HIGH_COLUMN, ID_LOW_COLUMN, LAST)
            )
            try:
                return keys, self._groups.admit(id_high, id_low, last, keys)
            except Refused as refused:
                if not self._relieve() and not self.split(partition):
                    raise shortage(self._budget, refused) from refused
        return None

    def split(self, partition: Partition) -> bool:
        """Halve the partition in memory; the upper half waits for its visit.

        Returns False, with nothing changed, if its range is too narrow.
        """
        if partition.high - partition.low < _NARROW:
            return False
        image = self._write_image(partition.facts)
        self._drop_image(partition.facts)
        partition.facts["image"] = image
        partition.suffixes.clear()
        partition.next.clear()
        self._halve(partition.facts)
        self._groups.clear()
        self._load(partition.facts)
        return True

    def import_image(
        self, chunks: Iterable[tuple[memoryview, memoryview]], keeps: IdRange | None = None
    ) -> None:
        """Start over with one partition whose image is a copy of the given records.

        The groups of other ids than it `keeps` are skipped whenever the image is read.
        """
        whole = keeps or IdRange(0, ID_HIGH_END)
        facts = _facts(whole.low, whole.high, None, stale=True)
        name = f"image-{uuid.uuid4().hex}"
        writer = SegmentWriter(self._files, self._arena.path(name), 0)
        for rows, keys in chunks:
            writer.append(rows, synopsis=_ROWS)
            writer.append(keys, synopsis=_KEYS)
        writer.finish(sync=False)
        facts["image"] = name
        self._groups.clear()
        self._arena.header.update({self._list: [facts], self._resident: -1})

    def _enter(self, facts: dict[str, Any]) -> Partition:
        if self._arena.header[self._resident] != facts["low"]:
            self._write_resident()
            self._groups.forget()
            self._load(facts, has_room=self._groups.capacity == 0)
        self._join_neighbours(facts)
        return Partition(facts, self._arena, self._suffix_words, self._scope)

    def _join_neighbours(self, facts: dict[str, Any]) -> None:
        """Take in the groups of partitions that follow the one in memory, while there is room."""
        for other in sorted(self._waiting, key=lambda each: int(each["low"])):
            groups = len(self._groups) + other["groups"]
            room = self._budget.free + self._groups.bytes_of(self._groups.capacity)
            fits = 2 * self._groups.bytes_of(groups) <= room
            if other["low"] != facts["high"] or not fits or _has_stacks(facts, other):
                continue
            try:
                with closing(self._read_image(other)) as image:
                    self._groups.load(image)
            except Refused:
                facts["image"] = self._write_image(facts)
                self._groups.clear()
                self._load(facts)
                return
            self._all.remove(other)
            self._waiting.remove(other)
            self._drop_image(other)
            facts.update(_NO_SUFFIXES, high=other["high"], stale=True)

    def evict(self) -> bool:
        """Evict the groups and free their memory; False if there are none. Not during a visit."""
        if self._arena.header[self._resident] < 0 or self._groups.capacity == 0:
            return False
        self._write_resident()
        self._groups.clear()
        return True

    def _write_resident(self) -> None:
        resident = self._arena.header[self._resident]
        for facts in self._all:
            if facts["low"] == resident:
                image = self._write_image(facts)
                self._drop_image(facts)
                facts["image"] = image
        self._arena.header[self._resident] = -1

    def _load(self, facts: dict[str, Any], *, has_room: bool = True) -> None:
        """Load a partition from its image, halving it until it fits.

        Without `has_room` the memory of other groups is still held and can be freed first.
        """
        while True:
            try:
                with closing(self._read_image(facts)) as image:
                    self._groups.load(image)
            except Refused as refused:
                self._groups.clear()
                if not has_room or self._relieve():
                    has_room = True
                    continue
                if facts["high"] - facts["low"] < _NARROW:
                    raise shortage(self._budget, refused) from refused
                self._halve(facts)
                continue
            self._arena.header[self._resident] = facts["low"]
            self._drop_image(facts)
            return

    def _halve(self, facts: dict[str, Any]) -> None:
        middle = (facts["low"] + facts["high"]) // 2
        upper = _facts(middle, facts["high"], facts["image"], stale=True)
        facts.update(_NO_SUFFIXES, high=middle, stale=True)
        self._all.append(upper)
        self._all.sort(key=lambda each: int(each["low"]))
        self._waiting.insert(0, upper)

    def _write_image(self, facts: dict[str, Any]) -> str:
        name = f"image-{uuid.uuid4().hex}"
        writer = SegmentWriter(self._files, self._arena.path(name), 0)
        for rows, keys in self._groups.image(facts["low"], facts["high"]):
            writer.append(self._groups.packed(rows), synopsis=_ROWS)
            writer.append(write_table(keys), synopsis=_KEYS)
        writer.finish(sync=False)
        return name

    def _read_image(
        self, facts: dict[str, Any]
    ) -> Generator[tuple[Table, pa.RecordBatch], None, None]:
        if facts["image"] is None:
            return
        own, rows = IdRange(facts["low"], facts["high"]), memoryview(b"")
        path = self._arena.path(facts["image"])
        self._arena.header[_READ] = self.bytes_read + os.path.getsize(path)
        with closing(SegmentReader(self._files, path)) as reader:
            for record in reader.scan():
                if record.synopsis == _ROWS:
                    rows = record.payload
                    continue
                keys = read_batch(record.payload)
                table = self._groups.unpacked(rows, keys.num_rows)
                id_high = np.ascontiguousarray(table[:, 0]).view(np.uint64)
                inside = np.flatnonzero(own.holds(id_high))
                if len(inside):
                    yield table[inside], keys.take(pa.array(inside))

    def _drop_image(self, facts: dict[str, Any]) -> None:
        """Release a partition's image; the file is removed with its last partition."""
        name, facts["image"] = facts["image"], None
        if name is not None and all(each["image"] != name for each in self._all):
            os.unlink(self._arena.path(name))


def with_room(action: Callable[[], object], partitions: Iterable[Partitions]) -> None:
    """Run an action that needs memory beside partitions; evict their groups if necessary."""
    try:
        action()
    except Refused:
        if sum(each.evict() for each in partitions) == 0:
            raise
        action()


#: facts of a partition without suffixes
_NO_SUFFIXES = {
    "fronts": 0,
    "next": 0,
    "flipped": MINUS_INFINITY,
    "turning": MINUS_INFINITY,
    "turned": MINUS_INFINITY,
    "since": MINUS_INFINITY,
}


def _has_stacks(*partitions: dict[str, Any]) -> bool:
    """Return whether one of some partitions has suffixes, of its own or of frames."""
    stacks = [each for facts in partitions for each in (facts, *facts.get("frames", ()))]
    return any(each["fronts"] or each.get("next") for each in stacks)


def _facts(low: int, high: int, image: str | None, *, stale: bool) -> dict[str, Any]:
    return {
        "low": low,
        "high": high,
        "image": image,
        "groups": 0,
        "stale": stale,
        **_NO_SUFFIXES,
    }
