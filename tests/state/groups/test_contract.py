"""What every keeper of rows by group promises, for the plain one and for the store."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from icestream.core.arrays import Ids, Slots
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.state import snapshot_schedule
from icestream.state.groups import cleaning, directory, heap, migration, ranked
from icestream.state.groups.options import StoreOptions
from icestream.state.groups.spec import GroupRows, Groups, Synopsis
from icestream.state.groups.store import GroupStore
from icestream.state.groups.view import GroupView
from tests.fixtures.group_space import GroupSpace
from tests.oracles.plain_groups import PlainGroups

SYNOPSES = (
    Synopsis("kept", pa.schema([("name", pa.string()), ("x", pa.int64())])),
    Synopsis("passing", pa.schema([("until", pa.int64()), ("x", pa.float64())]), expiry="until"),
    Synopsis("ranked", pa.schema([("rank", pa.int64())]), rank="rank"),
    Synopsis(
        "fading",
        pa.schema([("until", pa.int64()), ("rank", pa.float64())]),
        expiry="until",
        rank="rank",
    ),
)
#: synopses whose rows come in any order
RANKED = (2, 3)
GROUPS = 12

Row = tuple[int, tuple[Any, ...]]


def identities(groups: list[int]) -> tuple[Ids, Ids]:
    """Return identities of which some share id_high."""
    numbers = np.array(groups, dtype=np.uint64)
    return numbers // np.uint64(2) << np.uint64(60), numbers << np.uint64(20)


def batch_of(synopsis: int, values: list[tuple[int, int]]) -> pa.RecordBatch:
    """Make a row of every (number, instant)."""
    rows: list[dict[str, Any]]
    if synopsis == 0:
        rows = [{"name": "n" * (x % 40) if x % 5 else None, "x": x} for x, _ in values]
    elif synopsis == 1:
        rows = [{"until": until, "x": x / 2} for x, until in values]
    else:
        rows = [{"rank": x} for x, _ in values]
    if synopsis == 3:
        rows = [{"until": until, "rank": x / 2} for x, until in values]
    return pa.RecordBatch.from_pylist(rows, schema=SYNOPSES[synopsis].schema)


def rows_of(found: GroupRows) -> list[Row]:
    values = [tuple(row.values()) for row in found.rows.to_pylist()]
    return list(zip(found.owners.tolist(), values, strict=True))


class Both(RuleBasedStateMachine):
    """Does the same to the plain groups and to a store, and compares what they say."""

    @initialize(
        durability=st.sampled_from(["log", "log", "evict"]),
        deltas=st.booleans(),
        clean_is_free=st.booleans(),
        second_ask=st.booleans(),
        chain_limit=st.integers(1, 3),
        slots=st.sampled_from([GROUPS + 1, 2 * GROUPS, 1000]),
        blocks=st.sampled_from([20, 60, 4000]),
        record_bytes=st.sampled_from([64, 400, 65536]),
    )
    def start(
        self,
        durability: Any,
        deltas: bool,
        clean_is_free: bool,
        second_ask: bool,
        chain_limit: int,
        slots: int,
        blocks: int,
        record_bytes: int,
    ) -> None:
        self.options = StoreOptions(
            durability,
            deltas,
            clean_is_free,
            second_ask,
            chain_limit,
            block_words=4,
            record_bytes=record_bytes,
            page_bytes=512,
        )
        self.slots, self.blocks = slots, blocks
        self.folder = tempfile.mkdtemp()
        self.plain = PlainGroups(SYNOPSES)
        self.patches = ExitStack()
        for module, name, value in (
            (directory, "LEAST_SLOTS", 1),
            (heap, "LEAST_BLOCKS", 1),
            (snapshot_schedule, "AFTER", 2),
            (snapshot_schedule, "AT_LATEST", 3),
            (cleaning, "SLACK", 0),
            (ranked, "PIECE_WORDS", 4),
            (ranked, "PIECE_GROWTH", 2),
            (migration, "FEW", 2),
        ):
            self.patches.enter_context(mock.patch.object(module, name, value))
        self.space = GroupSpace(
            self.folder, SYNOPSES, self.options, prepare=self.tighten, block_bytes=512
        )
        self.now = 0
        self.open_version()

    def tighten(self, store: GroupStore) -> None:
        store.directory.limit = self.slots * (store.directory._rows.row_bytes + 16)
        store.heap.limit = self.blocks * store.heap.block_bytes

    def open_version(self) -> None:
        self.context = self.space.version(self.now)
        self.store = self.context.__enter__()
        self.begin()

    def begin(self) -> None:
        for groups in (self.plain, self.store):
            groups.begin(self.now)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.patches.close()
            shutil.rmtree(self.folder)

    def both(self, groups: list[int]) -> tuple[Slots, Slots]:
        id_high, id_low = identities(groups)
        return self.plain.locate(id_high, id_low), self.store.locate(id_high, id_low)

    # -- what operators do -----------------------------------------------------------------

    @rule(
        synopsis=st.integers(0, 3),
        rows=st.lists(
            st.tuples(st.integers(0, GROUPS - 1), st.integers(-99, 99), st.integers(1, 30)),
            max_size=8,
        ),
        forever=st.booleans(),
    )
    def append(self, synopsis: int, rows: list[tuple[int, int, int]], forever: bool) -> None:
        plain, store = self.both([group for group, _, _ in rows])
        ends = [(x, INFINITY if forever and x % 7 == 0 else self.now + t) for _, x, t in rows]
        batch = batch_of(synopsis, ends)
        self.plain.append(synopsis, plain, batch)
        self.store.append(synopsis, store, batch)

    @rule(
        synopsis=st.integers(0, 3),
        rows=st.dictionaries(
            st.integers(0, GROUPS - 1),
            st.lists(st.tuples(st.integers(-99, 99), st.integers(1, 30)), max_size=2),
            max_size=4,
        ),
    )
    def rewrite(self, synopsis: int, rows: dict[int, list[tuple[int, int]]]) -> None:
        plain, store = self.both(list(rows))
        owners = [n for n, found in enumerate(rows.values()) for _ in found]
        values = [(x, self.now + t) for found in rows.values() for x, t in found]
        news = GroupRows(np.array(owners, dtype=np.int64), batch_of(synopsis, values))
        self.plain.rewrite(synopsis, plain, news)
        self.store.rewrite(synopsis, store, news)

    @rule(
        synopsis=st.integers(0, 3),
        groups=st.sets(st.integers(0, GROUPS - 1), min_size=1),
        in_pieces=st.booleans(),
    )
    def read(self, synopsis: int, groups: set[int], in_pieces: bool) -> None:
        plain, store = self.both(sorted(groups))
        expected = rows_of(self.plain.read(synopsis, plain))
        found: list[Row] = []
        places = dict(zip(store.tolist(), range(len(store)), strict=True))
        for portion in self.store.portions(store):
            pieces = (
                self.store.pieces(synopsis, portion)
                if in_pieces
                else [self.store.read(synopsis, portion)]
            )
            for some in pieces:
                assert some.rows.schema == SYNOPSES[synopsis].schema
                for owner, row in rows_of(some):
                    found.append((places[int(portion[owner])], row))
        # rows of a group keep their order, portions come in any
        found.sort(key=lambda each: each[0])
        if synopsis in RANKED:
            found, expected = sorted(found), sorted(expected)
        assert found == expected

    @rule(
        synopsis=st.sampled_from(RANKED),
        groups=st.dictionaries(st.integers(0, GROUPS - 1), st.integers(0, 4), min_size=1),
    )
    def read_best(self, synopsis: int, groups: dict[int, int]) -> None:
        plain, store = self.both(list(groups))
        counts = dict(zip(store.tolist(), groups.values(), strict=True))
        every = rows_of(self.plain.read(synopsis, plain))
        seen = 0
        for portion in self.store.portions(store):
            asked = np.array([counts[slot] for slot in portion.tolist()])
            places = [store.tolist().index(slot) for slot in portion.tolist()]
            found = rows_of(self.store.read_best(synopsis, portion, asked))
            for place, count in enumerate(asked.tolist()):
                mine = sorted((row[-1] for o, row in found if o == place), reverse=True)
                all_of_it = sorted(
                    (row[-1] for o, row in every if o == places[place]), reverse=True
                )
                assert mine[:count] == all_of_it[:count]
                assert not Counter(mine) - Counter(all_of_it)
            seen += len(portion)
        assert seen == len(store)

    @rule(
        groups=st.dictionaries(
            st.integers(0, GROUPS - 1), st.none() | st.integers(0, 20), min_size=1
        )
    )
    def remind(self, groups: dict[int, int | None]) -> None:
        plain, store = self.both(list(groups))
        due = np.array(
            [INFINITY if d is None else self.now + d for d in groups.values()], dtype=np.int64
        )
        self.plain.remind(plain, due)
        self.store.remind(store, due)

    @rule(groups=st.dictionaries(st.integers(0, GROUPS - 1), st.integers(0, 20), min_size=1))
    def hasten(self, groups: dict[int, int]) -> None:
        plain, store = self.both(list(groups))
        due = np.array([self.now + d for d in groups.values()], dtype=np.int64)
        self.plain.hasten(plain, due)
        self.store.hasten(store, due)

    @rule(ahead=st.integers(0, 20))
    def due(self, ahead: int) -> None:
        expected = self.named(self.plain, self.plain.due(self.now + ahead))
        assert self.named(self.store, self.store.due(self.now + ahead)) == expected

    def named(self, groups: Groups, slots: Slots) -> list[tuple[int, int]]:
        id_high, id_low = groups.identities(slots)
        return sorted(zip(id_high.tolist(), id_low.tolist(), strict=True))

    # -- what happens to them --------------------------------------------------------------

    @rule(step=st.integers(0, 5))
    def next_chunk(self, step: int) -> None:
        self.now += step
        self.begin()

    @rule(which=st.integers(0, 3))
    def evict(self, which: int) -> None:
        candidates = self.store.eviction.candidates()
        self.store.eviction.evict(candidates[which::4] if which else candidates)

    @rule()
    def demote(self) -> None:
        self.begin()
        self.store.eviction.demote(GROUPS // 2)

    @rule(step=st.integers(0, 5))
    def next_version(self, step: int) -> None:
        self.now += step
        self.end_version()
        self.open_version()

    @precondition(lambda self: self.options.durability == "log")
    @rule(step=st.integers(0, 5))
    def restart(self, step: int) -> None:
        self.now += step
        self.end_version()
        self.space.lose_arena()
        self.open_version()

    def end_version(self) -> None:
        self.plain.begin(self.now)
        self.space.watermark = self.now
        self.context.__exit__(None, None, None)


TestTheContract = pytest.mark.timeout(600)(Both.TestCase)
TestTheContract.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_equal_identities_have_equal_slots() -> None:
    with tempfile.TemporaryDirectory() as folder:
        space = GroupSpace(folder, SYNOPSES)
        with space.version() as store:
            for groups in (PlainGroups(SYNOPSES), store):
                groups.begin(MINUS_INFINITY)
                slots = groups.locate(*identities([3, 1, 3, 2, 1]))
                assert slots[0] == slots[2]
                assert slots[1] == slots[4]
                assert len(set(slots.tolist())) == 3
                assert groups.locate(*identities([2, 3])).tolist() == slots[[3, 0]].tolist()
                id_high, id_low = groups.identities(slots)
                assert [id_high.tolist(), id_low.tolist()] == [
                    each.tolist() for each in identities([3, 1, 3, 2, 1])
                ]


def test_views_are_apart() -> None:
    with tempfile.TemporaryDirectory() as folder:
        space = GroupSpace(folder, SYNOPSES)
        with space.version() as store:
            store.begin(0)
            left, right = GroupView(store, 0, 1), GroupView(store, 1, 1)
            slots = left.locate(*identities([1, 2]))
            left.append(0, slots, batch_of(0, [(1, 0), (2, 0)]))
            right.append(1, slots, batch_of(2, [(7, 0), (8, 0)]))
            left.remind(slots, np.array([5, INFINITY]))
            right.remind(slots, np.array([INFINITY, 3]))
            assert left.due(9).tolist() == slots[:1].tolist()
            assert right.due(9).tolist() == slots[1:].tolist()
            assert rows_of(right.read(1, slots)) == [(0, (7,)), (1, (8,))]
            assert right.read(0, slots).rows.num_rows == 0
            portions = list(itertools.chain.from_iterable(left.portions(slots)))
            assert portions == slots.tolist()


def test_portions_count_the_rows_of_their_operator() -> None:
    with tempfile.TemporaryDirectory() as folder:
        space = GroupSpace(folder, SYNOPSES)
        with space.version() as store, mock.patch("icestream.state.groups.memory.PORTION", 256):
            store.begin(0)
            left, right = GroupView(store, 0, 1), GroupView(store, 2, 1)
            slots = left.locate(*identities(list(range(20))))
            many = np.repeat(slots, 20)
            left.append(0, many, batch_of(0, [(number, 0) for number in range(len(many))]))
            right.append(0, slots, batch_of(2, [(number, 0) for number in range(len(slots))]))
            assert len(list(left.portions(slots))) > 1
            assert [part.tolist() for part in right.portions(slots)] == [slots.tolist()]
