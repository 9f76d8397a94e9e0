"""The store of groups: what it writes, what it holds, how it comes back."""

from __future__ import annotations

import glob
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.arrays import Ids, Ints
from icestream.core.errors import BudgetError, CheckpointError, DamageError
from icestream.core.times import INFINITY
from icestream.kernels.groups.heap import COLD, WHOLE, WORDS
from icestream.state import snapshot_schedule
from icestream.state.groups import migration
from icestream.state.groups.cleaning import _pointing_elsewhere
from icestream.state.groups.cold.manager import Manager, Policy
from icestream.state.groups.directory import part
from icestream.state.groups.facts import Fact
from icestream.state.groups.memory import PORTION
from icestream.state.groups.options import StoreOptions
from icestream.state.groups.spec import GroupRows, Synopsis, Wear
from icestream.state.groups.store import FEW_WORN, GroupStore
from tests.fixtures.group_space import GroupSpace

NUMBERS = (Synopsis("numbers", pa.schema([("x", pa.int64()), ("y", pa.int64())])),)
PASSING = (Synopsis("passing", pa.schema([("until", pa.int64()), ("x", pa.int64())]), "until"),)
LOG, EVICT = StoreOptions(), StoreOptions("evict")


def identities(groups: Ints | range | list[int]) -> tuple[Ids, Ids]:
    numbers = np.asarray(groups, dtype=np.uint64)
    id_high = (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return id_high, id_high ^ (id_high >> np.uint64(29)) * np.uint64(0xBF58476D1CE4E5B9)


def rows(first: Ints | list[int], second: Ints | list[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(first), pa.array(second)], NUMBERS[0].schema)


def add(store: GroupStore, groups: Ints | range | list[int], values: Ints | list[int]) -> None:
    """Add a row (group, value) to each of some groups."""
    numbers = np.asarray(groups, dtype=np.int64)
    slots = store.locate(*identities(numbers))
    store.append(0, slots, named(store, numbers, np.asarray(values, dtype=np.int64)))


def named(store: GroupStore, first: Ints, second: Ints) -> pa.RecordBatch:
    columns = [pa.array(first), pa.array(second)]
    return pa.RecordBatch.from_arrays(columns, schema=store._synopses[0].schema)


def content(store: GroupStore, groups: Ints | range | list[int]) -> dict[int, list[int]]:
    """Return the second column of groups."""
    slots = store.locate(*identities(groups))
    found: dict[int, list[int]] = {int(group): [] for group in groups}
    names = dict(zip(slots.tolist(), found, strict=True))
    for portion in store.portions(slots):
        some = store.read(0, portion)
        values = some.rows.column(1).to_pylist()
        for owner, value in zip(portion[some.owners].tolist(), values, strict=True):
            found[names[owner]].append(value)
    return found


def test_a_store_goes_on_in_another_task(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS)
    for version in range(3):
        with space.version() as store:
            store.begin(0)
            add(store, [1, 2, 1], [version, version, version + 10])
            assert store.statistics["returned"] == 0
    with space.version() as store:
        store.begin(0)
        assert content(store, [1, 2, 3]) == {1: [0, 10, 1, 11, 2, 12], 2: [0, 1, 2], 3: []}


@pytest.mark.parametrize("options", [LOG, EVICT], ids=["log", "evict"])
def test_a_clean_group_leaves_for_free(tmp_path: Path, options: StoreOptions) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, options)
    with space.version() as store:
        store.begin(0)
        add(store, range(50), np.arange(50))
        store.eviction.evict(store.eviction.candidates())
    with space.version() as store:
        store.begin(0)
        for _ in range(2):
            assert content(store, range(50)) == {n: [n] for n in range(50)}
        before = store.written
        assert store.eviction.evict(store.eviction.candidates()) > 0
        assert store.written == before
        assert content(store, [7]) == {7: [7]}


def test_without_the_switch_a_clean_group_is_written(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, StoreOptions("evict", clean_is_free=False))
    with space.version() as store:
        store.begin(0)
        add(store, range(50), np.arange(50))
        store.eviction.evict(store.eviction.candidates())
        before = store.written
        for _ in range(2):
            content(store, range(50))
        assert store.written == before
        store.eviction.evict(store.eviction.candidates())
        assert store.written >= 2 * before


@pytest.mark.parametrize("options", [LOG, EVICT], ids=["log", "evict"])
def test_a_cold_group_comes_back_when_it_is_asked_for_again(
    tmp_path: Path, options: StoreOptions
) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, options)
    with space.version() as store:
        store.begin(0)
        slots = np.sort(store.locate(*identities(range(50))))
        add(store, range(50), np.arange(50))
        store.eviction.evict(slots)
        store_left = store.statistics["left"]
        for leaving_again in range(2):
            # what was added to cold groups is in memory
            add(store, range(50), np.arange(50))
            added = [leaving_again + 2] * 50
            alone = store.eviction.resident(slots).tolist()
            for asked in range(3):
                found = content(store, range(50))
                assert [len(found[n]) for n in range(50)] == added
                assert np.sort(store.eviction.take_hits()).tolist() == slots.tolist()
                is_in_memory = store.memory.has(0, WHOLE, slots)
                assert is_in_memory.all() if asked else not is_in_memory.any()
                if not asked:
                    assert store.eviction.resident(slots).tolist() == alone
            assert store.statistics["returned"] == 100 * (leaving_again + 1)
            assert store.statistics["left"] == store_left + 50 * leaving_again
            store.eviction.evict(slots)


def test_a_group_that_was_read_and_left_cold_is_added_to_and_replaced(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS)
    with space.version() as store:
        store.begin(0)
        add(store, range(4), np.arange(4))
        store.eviction.evict(store.eviction.candidates())
        assert content(store, range(4)) == {n: [n] for n in range(4)}
        add(store, [0, 1], [10, 11])
        slots = store.locate(*identities([1, 2]))
        new = GroupRows(np.zeros(1, dtype=np.int64), named(store, np.array([1]), np.array([7])))
        store.rewrite(0, slots, new)
        wanted = {0: [0, 10], 1: [7], 2: [], 3: [3]}
        assert content(store, range(4)) == wanted
    for _ in range(2):
        with space.version() as store:
            store.begin(0)
            store.eviction.evict(store.eviction.candidates())
            assert content(store, range(4)) == wanted


def test_deltas_write_only_what_is_new(tmp_path: Path) -> None:
    written = {}
    for deltas in (True, False):
        folder = tmp_path / str(deltas)
        folder.mkdir()
        space = GroupSpace(str(folder), NUMBERS, StoreOptions("evict", deltas=deltas))
        with space.version() as store:
            store.begin(0)
            add(store, np.repeat(np.arange(20), 100), np.arange(2000))
            store.eviction.evict(store.eviction.candidates())
            content(store, range(20))
            before = store.written
            add(store, range(20), np.zeros(20, dtype=np.int64))
            store.eviction.evict(store.eviction.candidates())
            written[deltas] = store.written - before
            assert all(len(found) == 101 for found in content(store, range(20)).values())
    assert 10 * written[True] < written[False]


def test_adding_to_cold_groups_reads_nothing(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, StoreOptions("evict"))
    with space.version() as store:
        store.begin(0)
        add(store, range(20), np.arange(20))
        store.eviction.evict(store.eviction.candidates())
        add(store, range(20), np.arange(20))
        assert store.statistics["returned"] == 0


def test_a_long_chain_is_made_one_when_it_leaves(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, StoreOptions(chain_limit=3))
    for version in range(8):
        with space.version() as store:
            store.begin(0)
            add(store, range(5), np.full(5, version))
            if version == 7:
                store.eviction.evict(store.eviction.candidates())
            assert (store.statistics["consolidated"] > 0) == (version == 7)
    with space.version() as store:
        store.begin(0)
        records = store.statistics["extents_read"]
        assert content(store, [3]) == {3: list(range(8))}
        assert store.statistics["extents_read"] - records == 1


def test_a_chain_of_small_pieces_is_made_one_when_it_leaves(tmp_path: Path) -> None:
    space, few = GroupSpace(str(tmp_path), NUMBERS), migration.FEW
    for version in range(few):
        with space.version() as store:
            store.begin(0)
            # group 1 has pieces that are no smaller than what they would be made of
            add(store, [0] + [1] * migration.SCATTERED, [version] * (migration.SCATTERED + 1))
    for leaves in range(2):
        with space.version() as store:
            store.begin(0)
            before = store.statistics
            assert content(store, [0]) == {0: list(range(few))}
            assert len(content(store, [1])[1]) == few * migration.SCATTERED
            store.eviction.evict(store.eviction.candidates())
            read = store.statistics["extents_read"] - before["extents_read"]
            assert read == (few + 1 if leaves else 0)
            written = store.statistics["consolidated"] - before["consolidated"]
            assert (0 < written < 8 * migration.SCATTERED) if not leaves else not written


def test_a_chain_of_small_pieces_is_made_one_when_it_is_read(tmp_path: Path) -> None:
    space, few = GroupSpace(str(tmp_path), NUMBERS), migration.FEW
    with space.version() as store:
        store.begin(0)
        # group 1 has large pieces
        large = few * migration.SCATTERED
        add(store, [0] + [1] * large, [0] * (large + 1))
        store.eviction.evict(store.eviction.candidates())
    for version in range(1, few):
        with space.version() as store:
            store.begin(0)
            add(store, [0, 1], [version, version])
    with space.version() as store:
        store.begin(0)
        # what is only in memory becomes a part of it
        add(store, [0], [few])
        for extents, written in ((2 * few, True), (few + 1, False)):
            before = store.statistics
            found = content(store, [0, 1])
            assert found[0] == list(range(few + 1))
            assert len(found[1]) == large + few - 1
            after = store.statistics
            assert after["extents_read"] - before["extents_read"] == extents
            consolidated = after["consolidated"] - before["consolidated"]
            assert (0 < consolidated < 1000) if written else not consolidated
            if written:
                assert not store.eviction.resident(store.locate(*identities([0, 1]))).any()
    with space.version() as store:
        store.begin(0)
        store.eviction.evict(store.eviction.candidates())
        assert content(store, [0])[0] == list(range(few + 1))


def test_groups_added_to_but_never_read_have_short_chains(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, StoreOptions(chain_limit=3))
    for version in range(20):
        with space.version() as store:
            store.begin(0)
            add(store, range(5), np.full(5, version))
            store.eviction.evict(store.eviction.candidates())
    with space.version() as store:
        store.begin(0)
        before = store.statistics["extents_read"]
        assert content(store, [3]) == {3: list(range(20))}
        assert store.statistics["extents_read"] - before <= 3


def test_a_group_too_large_is_a_budget_error(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, quota=1 << 18)
    with space.version() as store:
        store.begin(0)
        add(store, np.zeros(3000, dtype=np.int64), np.arange(3000))
        store.eviction.evict(store.eviction.candidates())
        add(store, np.zeros(3000, dtype=np.int64), np.arange(3000))
        with pytest.raises(BudgetError, match=r"needs 140\.6 KB") as raised:
            content(store, [0])
        # rows get a part of the memory
        assert 1 << 18 < raised.value.needed < 1 << 19


@pytest.mark.parametrize("options", [LOG, EVICT], ids=["log", "evict"])
def test_a_group_beyond_memory_is_read_in_pieces(tmp_path: Path, options: StoreOptions) -> None:
    quota, expected = 1 << 18, []
    space = GroupSpace(str(tmp_path), NUMBERS, options, quota=quota, block_bytes=8192)
    for version in range(12):
        with space.version() as store:
            store.begin(0)
            values = np.arange(6000) + 10_000 * version
            add(store, np.zeros(len(values), dtype=np.int64), values)
            expected += values.tolist()
            slots = store.locate(*identities([0]))
            pieces = [some.rows.column(1).to_pylist() for some in store.pieces(0, slots)]
            assert [value for some in pieces for value in some] == expected
            # three words a row; words, decoded rows and one more copy
            assert max(map(len, pieces)) * 24 * 3 <= store.memory.work
    assert len(pieces) > 20
    assert space.peak <= quota
    if options.durability == "log":
        space.lose_arena()
        with space.version() as store:
            store.begin(0)
            slots = store.locate(*identities([0]))
            store.consolidate(0, slots)
    with space.version() as store:
        store.begin(0)
        slots = store.locate(*identities([0]))
        again = [some.rows.column(1).to_pylist() for some in store.pieces(0, slots)]
        assert [value for some in again for value in some] == expected


# -- bounds --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [LOG, EVICT], ids=["log", "evict"])
def test_bounded_ten_times_the_budget(tmp_path: Path, options: StoreOptions) -> None:
    quota, groups = 1 << 19, 400
    space = GroupSpace(str(tmp_path), NUMBERS, options, quota=quota, block_bytes=8192)
    dice = np.random.default_rng(1)
    expected: dict[int, list[int]] = {n: [] for n in range(groups)}
    size = 0
    while size < 10 * quota:
        with space.version() as store:
            for _ in range(4):
                store.begin(0)
                some = np.sort(dice.choice(groups, 60, replace=False))
                named_rows = np.repeat(some, 100)
                values = dice.integers(0, 1000, len(named_rows))
                add(store, named_rows, values)
                for group, value in zip(named_rows.tolist(), values.tolist(), strict=True):
                    expected[group].append(value)
                size += 16 * len(values)
                asked = dice.choice(groups, 3, replace=False)
                assert content(store, asked) == {int(n): expected[int(n)] for n in asked}
    assert space.peak <= quota
    with space.version() as store:
        store.begin(0)
        assert content(store, range(groups)) == expected


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [LOG, EVICT], ids=["log", "evict"])
def test_bounded_groups_of_sixteen_bytes(
    tmp_path: Path, options: StoreOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = 1 << 18
    groups = 10 * quota // 16
    space = GroupSpace(str(tmp_path), NUMBERS, options, quota=quota, block_bytes=8192)
    dice = np.random.default_rng(2)
    order = dice.permutation(groups)
    done = 0
    monkeypatch.setattr(snapshot_schedule, "AFTER", 4)
    while done < groups:
        with space.version() as store:
            for _ in range(64):
                store.begin(0)
                some = order[done : done + store.chunk_groups]
                add(store, some, some * 3)
                done += len(some)
    assert space.peak <= quota
    with space.version() as store:
        for _ in range(5):
            store.begin(0)
            some = dice.choice(groups, store.chunk_groups, replace=False)
            assert content(store, some) == {int(n): [int(n) * 3] for n in some}
        assert store.index.runs <= 21
    if options.durability == "log":
        space.lose_arena()
        with space.version() as store:
            store.begin(0)
            some = dice.choice(groups, store.chunk_groups, replace=False)
            assert content(store, some) == {int(n): [int(n) * 3] for n in some}
        assert space.peak <= quota


def test_bounded_rows_without_expiry_are_cleaned(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, quota=1 << 20)
    with (
        mock.patch.object(snapshot_schedule, "AFTER", 4),
        mock.patch("icestream.state.groups.cleaning.SLACK", 20_000),
    ):
        most = 0
        for version in range(60):
            with space.version() as store:
                store.begin(0)
                slots = store.locate(*identities(range(100)))
                news = GroupRows(
                    np.repeat(np.arange(100), 5), rows([version] * 500, list(range(500)))
                )
                store.rewrite(0, slots, news)
                store.eviction.evict(slots[::2])
            most = max(most, space.log_bytes)
            if version % 9 == 8 or version > 40:
                space.lose_arena()
        with space.version() as store:
            store.begin(0)
            assert content(store, [1, 2]) == {1: list(range(5, 10)), 2: list(range(10, 15))}
    assert most < 8 * 100 * (5 * 24 + 56)


def test_bounded_rewritten_groups_are_cleaned(tmp_path: Path) -> None:
    space, slack = GroupSpace(str(tmp_path), NUMBERS, quota=1 << 20), 60_000
    found, groups, count = [], 200, 20
    with mock.patch("icestream.state.groups.cleaning.SLACK", slack):
        for version in range(30):
            with space.version() as store:
                store.begin(0)
                slots = store.locate(*identities(range(groups)))
                owners = np.repeat(np.arange(groups), count)
                store.rewrite(
                    0, slots, GroupRows(owners, rows([version] * len(owners), owners.tolist()))
                )
                held = store.eviction.bytes_held()
            found.append(space.log_bytes + held)
    # three words a row, a header for each group, and a header for each segment
    assert max(found) < 3 * groups * (24 * count + 40) + slack + 4_000


def test_bounded_rows_of_all_lifetimes_are_cleaned(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), PASSING, quota=1 << 20)
    most, count = 0, 40
    with mock.patch("icestream.state.groups.cleaning.SLACK", 20_000):
        for version in range(80):
            with space.version(version) as store:
                store.begin(version)
                slots = store.locate(*identities(range(count)))
                # one group in forty gets a row that outlives all others
                ends = np.where(np.arange(count) == version % count, 10_000, version + 2)
                for _ in range(5):
                    store.append(0, slots, named(store, ends, np.arange(count)))
                assert len(content(store, range(count))[3]) <= 10 + 10
                store.eviction.evict(slots[::2])
            most = max(most, space.log_bytes)
            if version % 9 == 8:
                space.lose_arena()
    assert most < 3 * (2 * count + 80) * 5 * (24 + 56) + 20_000 + count * 5 * (24 + 56)


def test_bounded_worn_groups_are_consolidated(tmp_path: Path) -> None:
    def summed(found: GroupRows) -> GroupRows:
        owners = np.unique(found.owners)
        totals = np.bincount(found.owners, found.rows["y"].to_numpy())[owners].astype(np.int64)
        return GroupRows(owners, rows(owners, totals))

    signed = replace(NUMBERS[0], wear=Wear(summed, "y"))
    space = GroupSpace(str(tmp_path), [signed], quota=1 << 20)
    for version in range(40):
        with space.version() as store:
            store.begin(0)
            for value in (version + 1, -version, 5, -5, 7, -7):
                add(store, range(9), [value] * 9)
            store.eviction.evict(store.locate(*identities(range(0, 9, 2))))
        with space.version() as store:
            store.begin(0)
            words = store.directory.table[:, [part(0) + WORDS, part(0) + COLD]]
            assert words.max() <= 2 * FEW_WORN + 6 * 3
        if version % 7 == 6:
            space.lose_arena()
    with space.version() as store:
        store.begin(0)
        assert {sum(values) for values in content(store, range(9)).values()} == {40}


def test_bounded_operators_get_few_rows_at_once_however_much_memory_there_is(
    tmp_path: Path,
) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, quota=1 << 28)
    groups, rows_each = 8, PORTION // 3 // 3
    with space.version() as store:
        store.begin(0)
        slots = store.locate(*identities(range(groups)))
        numbers = np.repeat(np.arange(groups), rows_each)
        store.append(0, slots[numbers], rows(numbers, numbers))
        one = store.locate(*identities([groups]))
        store.append(
            0,
            np.repeat(one, 4 * rows_each),
            rows(numbers[: 4 * rows_each], numbers[: 4 * rows_each]),
        )
        portions = list(store.portions(slots))
        assert sorted(slot for some in portions for slot in some.tolist()) == sorted(slots.tolist())
        assert max(map(len, portions)) == 3
        assert not store.fits(0, one)
        pieces = [some.rows.num_rows for some in store.pieces(0, one)]
        assert sum(pieces) == 4 * rows_each
        assert max(pieces) * 3 <= PORTION


@pytest.mark.parametrize("options", [LOG, EVICT])
def test_bounded_a_group_beyond_memory_is_rewritten(tmp_path: Path, options: StoreOptions) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, options, quota=1 << 17)
    count = 10_000
    with space.version() as store:
        for _ in range(2):
            store.begin(0)
            slots = store.locate(*identities([5, 6, 7]))
            owners = np.repeat([0, 1, 2], [3, count, 3])
            store.rewrite(0, slots, GroupRows(owners, rows(owners, np.arange(len(owners)))))
        assert store._space.account.budget.peak <= 1 << 17
    if options is LOG:
        space.lose_arena()
    with space.version() as store:
        store.begin(0)
        pieces = store.pieces(0, store.locate(*identities([6])))
        found = np.concatenate([some.rows.column(1).to_numpy() for some in pieces])
        assert found.tolist() == list(range(3, 3 + count))
        assert content(store, [5, 7]) == {5: [0, 1, 2], 7: [count + 3, count + 4, count + 5]}


@pytest.mark.parametrize("options", [LOG, EVICT])
def test_bounded_worn_groups_beyond_memory_are_consolidated(
    tmp_path: Path, options: StoreOptions
) -> None:
    """One group, three times as large as memory; each version puts some of its keys again."""

    def last(found: GroupRows) -> GroupRows:
        keys = found.rows.column(0).to_numpy()[::-1]
        places = np.sort(len(keys) - 1 - np.unique(keys, return_index=True)[1])
        return GroupRows(found.owners[places], found.rows.take(pa.array(places)))

    def kinds(some: pa.RecordBatch) -> Ids:
        keys: Ids = some.column(0).to_numpy().astype(np.uint64)
        return keys * np.uint64(0x9E3779B97F4A7C15)

    quota, count = 1 << 17, 16_000
    space = GroupSpace(
        str(tmp_path), [replace(NUMBERS[0], wear=Wear(last, kinds=kinds))], options, quota=quota
    )
    dice, known = np.random.default_rng(4), np.zeros(count, dtype=np.int64)
    most = 0
    for version in range(16):
        keys = np.arange(count) if not version else np.unique(dice.integers(0, count, 4_000))
        known[keys] += version
        with space.version() as store:
            store.begin(0)
            for some in np.array_split(keys, 8):
                slot = store.locate(*identities([5]))
                store.append(0, np.repeat(slot, len(some)), rows(some, known[some]))
        with space.version() as store:
            store.begin(0)
            most = max(most, int(store.memory.words(store.locate(*identities([5])))[0]))
            assert store._space.account.budget.peak <= quota
    if options is LOG:
        space.lose_arena()
    assert most <= 3 * 2 * count + 3 * 4_000
    with space.version() as store:
        store.begin(0)
        parts = list(store.pieces(0, store.locate(*identities([5])), kinds))
        assert len(parts) > 10
        found = dict[int, int]()
        for part in parts:
            mine = dict(zip(*(column.to_pylist() for column in part.rows.columns), strict=True))
            assert not mine.keys() & found.keys()
            found |= mine
        assert found == dict(enumerate(known.tolist()))


def test_live_bytes_are_known_from_a_few_groups(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, quota=1 << 18)
    # as in the second of two shards, all groups have a large identity
    half = np.uint64(1 << 63)
    with space.version() as store:
        for some in np.array_split(np.arange(2_000), 20):
            store.begin(0)
            id_high, id_low = identities(some)
            store.append(0, store.locate(id_high >> np.uint64(1) | half, id_low), rows(some, some))
    with space.version() as store:
        store._cleaner._count(store)
        exact = store.facts[Fact.LIVE]
        with mock.patch("icestream.state.groups.cleaning.SAMPLED", 200):
            store._cleaner._count(store)
        assert abs(store.facts[Fact.LIVE] - exact) < exact / 4


def test_bounded_few_groups_are_cleaned_at_once(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, quota=1 << 18)
    with space.version() as store:
        for some in np.array_split(np.arange(2_000), 20):
            store.begin(0)
            add(store, some, some)
    with space.version() as store:
        pieces = list(map(len, _pointing_elsewhere(store, 1 << 20, 7)))
        assert max(pieces) == 7
        assert sum(pieces) == 2_000 - store.directory.groups


def test_inline_groups_are_cleaned_without_reading(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, quota=1 << 18)
    with (
        mock.patch.object(snapshot_schedule, "AFTER", 4),
        mock.patch("icestream.state.groups.cleaning.SLACK", 0),
        mock.patch("icestream.state.groups.cleaning.SAMPLED", 64),
    ):
        many = np.arange(2_000)
        with space.version() as store:
            for some in np.array_split(many, 20):
                store.begin(0)
                add(store, some, some)
            promoted = store.facts[Fact.PROMOTED]
        # a few groups make garbage; the others are long cold, and written again all the same
        for version in range(100):
            with space.version() as store:
                store.begin(0)
                slots = store.locate(*identities(range(100)))
                news = rows([version] * 100, list(range(100)))
                store.rewrite(0, slots, GroupRows(np.arange(100), news))
                cleaned, returned = store.facts[Fact.CONSOLIDATED], store.facts[Fact.RETURNED]
                back = store.facts[Fact.PROMOTED] - promoted
        assert cleaned > 16 * len(many)
        assert returned == 0
        assert back < len(many) / 4
        space.lose_arena()
        with space.version() as store:
            for some in np.array_split(many, 20):
                store.begin(0)
                assert content(store, some) == {int(n): [int(n)] for n in some}


@pytest.mark.parametrize("seed", range(3))
def test_oracle_cleaning_changes_no_rows(tmp_path: Path, seed: int) -> None:
    dice = np.random.default_rng(seed)
    space = GroupSpace(str(tmp_path), NUMBERS, quota=1 << 18)
    cleaned = 0
    expected: dict[int, list[int]] = {n: [] for n in range(1_500)}
    with (
        mock.patch.object(snapshot_schedule, "AFTER", 4),
        mock.patch("icestream.state.groups.cleaning.SLACK", 0),
        mock.patch("icestream.state.groups.cleaning.SAMPLED", 64),
    ):
        for version in range(40):
            with space.version() as store:
                for _ in range(3):
                    store.begin(0)
                    some = np.unique(dice.integers(0, 1_500, 120))
                    # some groups are too large to be carried beside their entries, some get empty
                    sizes = np.where(some % 7 == 0, 12, 1) * (dice.random(len(some)) < 0.8)
                    owners = np.repeat(np.arange(len(some)), sizes)
                    values = dice.integers(0, 1_000, len(owners))
                    slots = store.locate(*identities(some))
                    news = rows([version] * len(owners), values)
                    store.rewrite(0, slots, GroupRows(owners, news))
                    for place, group in enumerate(some.tolist()):
                        expected[group] = values[owners == place].tolist()
                store.begin(0)
                some = np.unique(dice.integers(0, 1_500, 50))
                assert content(store, some) == {int(n): expected[int(n)] for n in some}
                cleaned = max(cleaned, store.facts[Fact.CONSOLIDATED])
            if version % 13 == 12:
                space.lose_arena()
        assert cleaned > 0
        with space.version() as store:
            for some in np.array_split(np.array(sorted(expected)), 20):
                store.begin(0)
                assert content(store, some) == {int(n): expected[int(n)] for n in some}


def test_what_was_added_to_cold_groups_is_written_where_it_takes_room(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, quota=1 << 18)
    with space.version() as store:
        store.begin(0)
        add(store, [1] * 200, list(range(200)))
        store.eviction.evict(store.locate(*identities([1])))
        with (
            mock.patch("icestream.state.groups.eviction.SPILL", 1),
            mock.patch.object(store.mover, "log_news", wraps=store.mover.log_news) as spilled,
        ):
            add(store, [1], [200])
            store.begin(0)
            little = spilled.call_count
            add(store, [1] * 800, list(range(201, 1001)))
            store.begin(0)
            much = spilled.call_count
        assert (little, much) == (0, 1)
        assert content(store, [1]) == {1: list(range(1001))}


def test_crash_cleaned_segments_are_not_missed(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, StoreOptions(chain_limit=2))
    with (
        mock.patch.object(snapshot_schedule, "AFTER", 3),
        mock.patch("icestream.state.groups.cleaning.SLACK", 0),
    ):
        for version in range(30):
            with space.version() as store:
                store.begin(0)
                # group 0 is written once; the others make garbage
                add(store, [0] if version == 0 else [], [42] if version == 0 else [])
                slots = store.locate(*identities(range(1, 20)))
                news = rows([version] * 19, list(range(1, 20)))
                store.rewrite(0, slots, GroupRows(np.arange(19), news))
            space.lose_arena()
        assert len(glob.glob(str(tmp_path / "*.seg"))) < 30
        with space.version() as store:
            store.begin(0)
            assert content(store, range(20)) == {0: [42]} | {n: [n] for n in range(1, 20)}


class ManagerAlone(Manager):
    """A manager of stores that lend nothing."""

    def take_back(self) -> None:
        """Do nothing."""


def test_a_manager_decides_who_leaves(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, quota=1 << 19)
    with space.version() as store:
        manager = ManagerAlone([store.eviction], Policy(classifier="lfu"))
        store.eviction.pressure = manager
        hot = list(range(20))
        for chunk in range(40):
            store.begin(0)
            some = np.arange(100 * chunk, 100 * chunk + 100)
            add(store, np.repeat(some, 10), np.repeat(some, 10))
            content(store, hot)
            manager.opened(store.name, store.eviction.take_opened())
            manager.note(store.name, store.eviction.take_hits())
            manager.turn(store.heap.limit, store.eviction.bytes_held())
        assert manager.state["ledgers"][store.name]["groups"] > 0
        assert store.eviction.bytes_held() <= store.heap.limit
        store.begin(0)
        in_memory = store.eviction.resident(store.locate(*identities(np.arange(20)))) > 0
        assert in_memory.all()
        assert content(store, [5, 345]) == {5: [5] * 10, 345: [345] * 10}


def test_rows_that_expire_give_their_segments_back(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), PASSING)
    for now in range(40):
        with space.version(now) as store:
            store.begin(now)
            add_passing(store, range(20), now + 3)
    assert space.log_bytes < 6 * 20_000
    with space.version(100) as store:
        store.begin(100)
        assert store.directory.groups == 0


def test_bounded_groups_that_expired_leave_the_cold_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_schedule, "AFTER", 4)
    space = GroupSpace(str(tmp_path), PASSING, quota=1 << 18, block_bytes=8192)
    done, held = 0, []
    for now in range(42):
        with space.version(now) as store:
            for _ in range(3):
                store.begin(now)
                add_passing(store, range(done, done + store.chunk_groups), now + 2)
                done += store.chunk_groups
            held.append(len(store.index))
    # a group lives for two versions; the next snapshot shows which entries are of no use any more
    assert max(held) > 10_000
    assert min(held[20:30]) < 2_000
    assert max(held[25:]) < 1.2 * max(held[:25]) < done


def add_passing(store: GroupStore, groups: range | list[int], until: int) -> None:
    slots = store.locate(*identities(groups))
    store.append(
        0, slots, named(store, np.full(len(slots), until), np.arange(len(slots), dtype=np.int64))
    )


# -- restoring -----------------------------------------------------------------------------


def test_crash_restored_groups_are_those_before(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, quota=1 << 18)
    dice = np.random.default_rng(3)
    expected: dict[int, list[int]] = {n: [] for n in range(3000)}
    due = dict.fromkeys(range(3000), INFINITY)
    with mock.patch.object(snapshot_schedule, "AFTER", 5):
        for version in range(24):
            with space.version() as store:
                for _ in range(3):
                    store.begin(0)
                    some = dice.choice(3000, 150, replace=False)
                    add(store, some, some + version)
                    slots = store.locate(*identities(some[:10]))
                    store.remind(slots, np.full(10, version))
                    due.update(dict.fromkeys(some[:10].tolist(), version))
                    for group in some.tolist():
                        expected[group].append(group + version)
            if version % 5 == 4:
                space.lose_arena()
        space.lose_arena()
        with space.version() as store:
            woken: set[int] = set()
            by_id_high = {
                int(id_high): n for n, id_high in enumerate(identities(range(3000))[0].tolist())
            }
            while True:
                store.begin(0)
                slots = store.due(20)
                if not len(slots):
                    break
                woken |= {by_id_high[id_high] for id_high in store.identities(slots)[0].tolist()}
                store.remind(slots, np.full(len(slots), INFINITY))
            assert woken == {group for group, instant in due.items() if instant <= 20}
            for first in range(0, 3000, 150):
                store.begin(0)
                part = range(first, first + 150)
                assert content(store, part) == {n: expected[n] for n in part}


def test_crash_a_shorter_rewrite_does_not_bring_old_rows_back(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), PASSING)
    with space.version(0) as store:
        store.begin(0)
        add_passing(store, [1], 100)
    with space.version(0) as store:
        store.begin(0)
        slots = store.locate(*identities([1]))
        news = named(store, np.array([50]), np.array([7]))
        store.rewrite(0, slots, GroupRows(np.zeros(1, dtype=np.int64), news))
    for now in (60, 60):
        with space.version(now) as store:
            store.begin(now)
            assert content(store, [1]) == {1: []}
        space.lose_arena()


def test_what_was_only_evicted_cannot_be_restored(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS, EVICT)
    with space.version() as store:
        store.begin(0)
        add(store, [1], [1])
    space.lose_arena()
    with pytest.raises(CheckpointError, match="replay the source"), space.version():
        pass


def test_damage_in_an_extent_names_the_file(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), NUMBERS)
    with space.version() as store:
        store.begin(0)
        add(store, range(100), np.arange(100))
    (path,) = glob.glob(str(tmp_path / "*.seg"))
    data = bytearray(Path(path).read_bytes())
    data[200] ^= 1
    Path(path).write_bytes(data)
    with space.version() as store:
        store.begin(0)
        store.eviction.evict(store.eviction.candidates())
        with pytest.raises(DamageError, match=path):
            content(store, range(100))


def test_a_directory_that_shrinks_keeps_all_groups(tmp_path: Path) -> None:
    sizes = []

    def too_large(store: GroupStore) -> None:
        sizes.append(store.directory.bytes)
        store.directory.ample = 60_000

    space = GroupSpace(str(tmp_path), NUMBERS, prepare=too_large)
    for version in range(4):
        with space.version() as store:
            store.begin(0)
            add(store, list(range(version * 300, version * 300 + 900)), [version] * 900)
            assert store.directory.bytes > 100_000
    with space.version() as store:
        store.begin(0)
        found = content(store, list(range(1800)))
    assert max(sizes) <= 75_000
    assert {group: sum(rows) for group, rows in found.items()} == {
        group: sum(v for v in range(4) if v * 300 <= group < v * 300 + 900) for group in range(1800)
    }
