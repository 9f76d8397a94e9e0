"""The n-way join: oracle, spills, clean-ups, restarts, and its bounds."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import BudgetError, InputError
from icestream.core.times import INFINITY
from icestream.operators.lifetimes.changes import DIFF
from icestream.operators.multi_join import merging
from icestream.operators.multi_join.operator import MultiJoin
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.sql.expressions.compile import Predicate
from icestream.state.log.reader import SegmentReader
from tests.fixtures.multi_join_space import JoinSpace, Sent, identity, sent
from tests.oracles.lifetimes import Bag
from tests.oracles.multi_join import Where, events_of, joined

NUMBERS = pa.schema([("x", pa.int64())])
MIXED = pa.schema([("s", pa.string()), ("x", pa.int32()), ("y", pa.list_(pa.int64()))])
KINDS = (NUMBERS, MIXED, pa.schema([("d", pa.float64()), ("b", pa.binary())]))


def spec_of(ports: int, partitions: int = 8, where: str | None = None) -> MultiJoinSpec:
    inputs = tuple(KINDS[port % len(KINDS)] for port in range(ports))
    columns = tuple(
        (port, name, f"{name}{port}") for port, schema in enumerate(inputs) for name in schema.names
    )
    spec = MultiJoinSpec(3, inputs, columns, partitions)
    if where is None:
        return spec
    return MultiJoinSpec(3, inputs, columns, partitions, Predicate.bind(spec.payload, where))


def payload_of(port: int, number: int) -> tuple[Any, ...]:
    """Return values that show which row it is, with nulls and any length among them."""
    text = None if number % 5 == 0 else "ab" * (number % 7) + str(number)
    kinds = (
        (None if number % 11 == 0 else number,),
        (text, number % 100, None if number % 3 == 0 else [number, None][: number % 4]),
        (number / 4, None if text is None else text.encode()),
    )
    return kinds[port % len(KINDS)]


@dataclass
class Run:
    """A join beside the oracle."""

    space: JoinSpace
    where: Where | None = None
    came: list[Bag] = field(default_factory=list)
    made: Bag = field(default_factory=Counter)
    #: instant before which no late result begins
    held: int = 0

    def __post_init__(self) -> None:
        self.came = [Counter() for _ in self.space.spec.inputs]

    def send(self, join: MultiJoin, port: int, rows: list[Sent]) -> None:
        changes = sent(self.space.spec.inputs[port], rows)
        self.came[port] += events_of([changes])
        self.made += events_of(join.on_changes(port, changes))

    def clean(self, join: MultiJoin, partitions: list[int] | None, *, last: bool = False) -> None:
        chosen = None if partitions is None else np.array(partitions, dtype=np.int64)
        late = events_of(join.clean_up(chosen, last=last))
        assert all(event.le >= self.held for event in late)
        self.made += late

    def hold(self, join: MultiJoin) -> None:
        """Note what the join promises; it never takes a promise back."""
        held = join.owes_since(max(0, self.space.watermark))
        assert held >= self.held
        self.held = held

    def check(self) -> None:
        assert self.made == joined(self.space.spec, self.came, self.where)


rows = st.lists(
    st.tuples(
        st.sampled_from((0, 0, 0, 1, 2, 3, 9, 20)),
        st.integers(0, 20),
        st.sampled_from((0, 1, 5, 30, INFINITY)),
    ),
    max_size=12,
)
spilled = st.lists(st.integers(0, 7), max_size=4)
steps = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 3), rows),
    st.tuples(st.just("spill"), spilled, st.none()),
)
versions = st.lists(
    st.tuples(
        st.lists(steps, max_size=6),
        st.one_of(st.just([]), st.none(), spilled),
        st.sampled_from((0, 0, 3, 25)),
        st.booleans(),
        st.sampled_from((None, None, True)),
    ),
    max_size=8,
)


@mock.patch.object(merging, "FEW", 1)
@given(st.integers(2, 4), versions)
@settings(max_examples=60, deadline=None)
def test_oracle_spills_and_clean_ups_at_any_moment(
    tmp_path_factory: pytest.TempPathFactory, ports: int, scenario: list[Any]
) -> None:
    """Spills, clean-ups, watermarks, snapshots, merged segments and lost arenas do not show."""
    space = JoinSpace(str(tmp_path_factory.mktemp("join")), spec_of(ports), quota=1 << 20)
    run = Run(space)
    number = 0
    for actions, cleaned, ahead, lost, snapshot in scenario:
        space.snapshot = snapshot
        begin = max(0, space.watermark)
        with space.version(begin + ahead) as join:
            for kind, what, given_rows in actions:
                if kind == "spill":
                    join.spill(np.array(what, dtype=np.int64))
                    continue
                port = what % ports
                events = []
                for key, le, length in given_rows:
                    number += 1
                    end = min(INFINITY, begin + le + length)
                    events.append((key, begin + le, end, payload_of(port, number)))
                run.send(join, port, events)
            if cleaned != []:
                run.clean(join, cleaned)
            run.hold(join)
        if lost:
            space.lose_arena()
    with space.version() as join:
        run.clean(join, None, last=True)
    run.check()
    assert space.log_bytes == 0


def random_rows(
    rng: np.random.Generator, port: int, count: int, keys: int, begin: int = 0, length: int = 0
) -> list[Sent]:
    """Return rows of keys of which few are hot; they end after `length` or never."""
    chosen = (keys * rng.random(count) ** 2).astype(int).tolist()
    starts = rng.integers(begin, begin + 50, count).tolist()
    return [
        (key, le, le + length if length else INFINITY, payload_of(port, int(rng.integers(1 << 20))))
        for key, le in zip(chosen, starts, strict=True)
    ]


def test_crash_restored_joins_emit_the_same_results(tmp_path: Path) -> None:
    """A join that loses its arena after every version emits the same in each, and owes the same."""
    spec = spec_of(3)
    reported: dict[bool, list[Any]] = {False: [], True: []}
    for lost, made in reported.items():
        rng = np.random.default_rng(5)
        folder = tmp_path / str(lost)
        folder.mkdir()
        space = JoinSpace(str(folder), spec, quota=1 << 21)
        for version in range(40):
            with space.version(version * 5) as join:
                join.spill(rng.integers(0, 8, version % 3))
                for port in range(3):
                    events = random_rows(rng, port, 8, 30, version * 5, 40)
                    made.append(events_of(join.on_changes(port, sent(spec.inputs[port], events))))
                if version % 9 == 8:
                    made.append(events_of(join.clean_up()))
                made.append((join.generations().tolist(), join.dirty().tolist()))
                made.append(join.owes_since(10**9))
            if lost:
                space.lose_arena()
    assert reported[False] == reported[True]


class CrashError(Exception):
    """The process dies."""


def play(
    run: Run, scenario: list[list[Sent]], spilled: list[int], *, clean: bool, steps: int
) -> None:
    """Run a version; it dies before it has made all of its four steps."""
    with run.space.version() as join:
        for port in range(min(2, steps)):
            run.send(join, port, scenario[port])
        if steps > 2:
            join.spill(np.array(spilled))
        if steps > 3 and clean:
            run.clean(join, None)
        if steps < 4:
            raise CrashError


def test_crash_in_the_middle_of_a_version_leaves_nothing_behind(tmp_path: Path) -> None:
    """A version that dies anywhere is made again from the one before."""
    space = JoinSpace(str(tmp_path), spec_of(2), quota=1 << 20)
    run = Run(space)
    rng = np.random.default_rng(8)
    for version in range(30):
        scenario = [random_rows(rng, port, 10, 20) for port in range(2)]
        spilled = rng.integers(0, 8, 2).tolist()
        came, made = [bag.copy() for bag in run.came], run.made.copy()
        with pytest.raises(CrashError):
            play(run, scenario, spilled, clean=False, steps=int(rng.integers(0, 4)))
        run.came, run.made = came, made
        play(run, scenario, spilled, clean=version % 5 == 4, steps=4)
    with space.version() as join:
        run.clean(join, None, last=True)
    run.check()


def clean_up_too_early(run: Run) -> None:
    with run.space.version() as join:
        for _ in range(2):
            run.send(join, 0, [(1, 0, 9, (1,))])
            run.clean(join, None)


def test_rows_do_not_come_after_clean_up(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="clean up last"):
        clean_up_too_early(Run(JoinSpace(str(tmp_path), spec_of(2))))


def test_a_condition_holds_for_early_and_late_results(tmp_path: Path) -> None:
    space = JoinSpace(str(tmp_path), spec_of(2, where="x0 + x1 > 60"), quota=1 << 20)
    run = Run(space, lambda row: row["x0"] is not None and row["x0"] + row["x1"] > 60)
    with space.version() as join:
        for turn in range(6):
            for port in range(2):
                numbers = [(7 * turn + 13 * port + n) % 97 for n in range(6)]
                run.send(join, port, [(n % 3, 0, 9, payload_of(port, n)) for n in numbers])
            join.spill(np.arange(8) if turn % 2 else np.array([3]))
        run.clean(join, None)
    run.check()


def test_changes_that_take_events_back_are_refused(tmp_path: Path) -> None:
    space = JoinSpace(str(tmp_path), spec_of(2))
    changes = sent(NUMBERS, [(1, 0, 5, (1,))])
    taken = changes.set_column(changes.schema.get_field_index(DIFF), DIFF, pa.array([-1]))
    with space.version() as join, pytest.raises(InputError, match="onPressure='fetch'"):
        list(join.on_changes(0, taken))


def test_a_join_of_300_streams_loses_no_row(tmp_path: Path) -> None:
    schemas = tuple(pa.schema([(f"x{port}", pa.int64())]) for port in range(300))
    columns = tuple((port, f"x{port}", f"x{port}") for port in (0, 43, 44, 256, 299))
    run = Run(JoinSpace(str(tmp_path), MultiJoinSpec(3, schemas, columns, 8), quota=1 << 24))
    with run.space.version() as join:
        for port in range(150):
            run.send(join, port, [(key, 0, 9, (port + 1000 * key,)) for key in (0, 3)])
        join.spill(np.arange(8))
    with run.space.version() as join:
        for port in range(150, 300):
            run.send(join, port, [(key, 0, 9, (port + 1000 * key,)) for key in (0, 3)])
        run.clean(join, None)
    assert sorted(event.payload for event in run.made) == [
        (0, 43, 44, 256, 299),
        (3000, 3043, 3044, 3256, 3299),
    ]


def test_results_of_one_generation_come_at_once_and_not_again(tmp_path: Path) -> None:
    """Rows meet as long as their partition stays; clean-up brings the rest, once."""
    space = JoinSpace(str(tmp_path), spec_of(2, partitions=1))
    run = Run(space)
    with space.version() as join:
        run.send(join, 0, [(1, 0, 9, (1,))])
        run.send(join, 1, [(1, 2, 12, ("a", 1, None))])
        assert sum(run.made.values()) == 1
        assert join.outputs().tolist() == [1]
        join.spill(np.array([0]))
        assert join.sizes().tolist() == join.outputs().tolist() == [0]
        run.send(join, 0, [(1, 3, 9, (2,))])
        assert sum(run.made.values()) == 1
        assert join.dirty().tolist() == [True]
        assert join.owes_since(50) == 3
        assert join.ended().tolist() == [True]
    with space.version() as join:
        assert join.generations().tolist() == [1]
        assert join.ended().tolist() == [False]
        run.clean(join, None)
        assert sum(run.made.values()) == 2
        assert join.owes_since(50) == 50
        assert join.generations().tolist() == [0]  # it is back in memory
        run.clean(join, None)
        assert sum(run.made.values()) == 2
    run.check()


def test_a_partition_in_memory_is_left_there_by_clean_up(tmp_path: Path) -> None:
    space = JoinSpace(str(tmp_path), spec_of(2))
    run = Run(space)
    with space.version() as join:
        run.send(join, 0, [(1, 0, 9, (1,))])
        run.clean(join, None)
        assert join.sizes().sum() > 0
    with space.version() as join:
        run.send(join, 1, [(1, 0, 9, ("a", 1, None))])
    assert sum(run.made.values()) == 1


def test_clean_up_evicts_nothing(tmp_path: Path) -> None:
    run = Run(JoinSpace(str(tmp_path), spec_of(2)))
    with run.space.version() as join:
        run.send(join, 0, [(1, 0, INFINITY, (1,))])
        join.spill(np.arange(8))
    with run.space.version() as join:
        run.send(join, 1, [(1, 0, INFINITY, ("a", 1, None))])
        sizes = join.sizes()
        run.made += events_of(join.clean_up(fill=0.0))
        np.testing.assert_array_equal(join.sizes(), sizes)
        assert not join.dirty().any()
    assert sum(run.made.values()) == 1
    with run.space.version() as join:
        run.send(join, 0, [(1, 0, INFINITY, (2,))])
        assert sum(run.made.values()) == 2  # with the row that stayed in memory
        assert not list(join.clean_up(fill=0.0))
        run.send(join, 1, [])
    with run.space.version() as join:
        run.send(join, 1, [(1, 0, INFINITY, ("b", 2, None))])
        assert sum(run.made.values()) == 3
        run.made += events_of(join.clean_up(fill=0.0))
    run.check()


def test_clean_up_of_a_join_that_is_nearly_full_evicts_nothing(tmp_path: Path) -> None:
    run = Run(JoinSpace(str(tmp_path), spec_of(2), quota=1 << 20))
    rng = np.random.default_rng(9)
    with run.space.version() as join:
        run.send(join, 0, random_rows(rng, 0, 200, 100))
        join.spill(np.arange(8))
    with run.space.version() as join:
        budget = join._shard.account.budget
        while budget.free > budget.total // 8:
            run.send(join, 0, random_rows(rng, 0, 100, 1 << 20))
            run.send(join, 1, random_rows(rng, 1, 10, 100))
        sizes = join.sizes()
        run.clean(join, None)
        np.testing.assert_array_equal(join.sizes(), sizes)
        assert join.statistics["late"] > 0
        assert join.statistics["forced_spills"] == 0
    run.check()


def test_a_partition_that_was_cleaned_up_returns_to_memory(tmp_path: Path) -> None:
    run = Run(JoinSpace(str(tmp_path), spec_of(2)))
    keys = range(40)
    with run.space.version() as join:
        run.send(join, 0, [(key, 0, INFINITY, (key,)) for key in keys])
        join.spill(np.arange(8))
        assert join.sizes().sum() == 0
    with run.space.version() as join:
        run.send(join, 1, [(key, 0, INFINITY, ("a", key, None)) for key in keys])
        run.clean(join, None)
        assert (join.generations() == 0).all()
    for lose in (False, True):
        if lose:
            run.space.lose_arena()
        with run.space.version() as join:
            before = sum(run.made.values())
            run.send(join, 1, [(key, 0, INFINITY, ("b", key, None)) for key in keys])
            assert sum(run.made.values()) == before + len(keys)
            assert not join.dirty().any()
    run.check()


def test_the_partition_that_owed_the_most_returns_first(tmp_path: Path) -> None:
    """Of two partitions of equal size only one fits into memory."""
    spec = spec_of(2, partitions=2)
    space = JoinSpace(str(tmp_path), spec, quota=1 << 20)
    run = Run(space)
    keys = range(400)
    homes = spec.partitions_of(np.array([identity(key)[0] for key in keys], dtype=np.uint64))
    with space.version() as join:
        run.send(join, 0, [(key, 0, INFINITY, (key,)) for key in keys])
        join.spill(np.array([0, 1]))
    with space.version() as join:
        partners = [key for key in keys if homes[key] == 1 or key % 40 == 0]
        run.send(join, 1, [(key, 0, INFINITY, payload_of(1, key)) for key in partners])
    with space.version() as join:
        budget = join._shard.account.budget
        expected = join._history.sizes_on_log(0).max()
        fill = (budget.total - budget.free + 1.2 * expected) / budget.total
        run.made += events_of(join.clean_up(fill=fill))
        assert join.generations().tolist() == [1, 0]
    with space.version() as join:
        run.clean(join, None, last=True)
    run.check()


def test_a_join_without_columns_counts_combinations(tmp_path: Path) -> None:
    space = JoinSpace(str(tmp_path), MultiJoinSpec(0, (NUMBERS, NUMBERS), (), 4))
    run = Run(space)
    with space.version() as join:
        run.send(join, 0, [(1, 0, 9, (1,)), (1, 0, 9, (2,))])
        run.send(join, 1, [(1, 0, 9, (3,))])
    assert list(run.made.values()) == [2]
    run.check()


# -- bounds --------------------------------------------------------------------------------


def test_bounded_state_of_ten_times_the_quota(tmp_path: Path) -> None:
    """Rows of ten times the quota come and are cleaned up within it; nothing is lost."""
    quota = 1 << 20
    wide = pa.schema([("x", pa.int64()), ("wide", pa.binary())])
    columns = ((0, "x", "a"), (1, "x", "b"), (2, "wide", "c"))
    space = JoinSpace(str(tmp_path), MultiJoinSpec(0, (wide,) * 3, columns, 32), quota=quota)
    rng = np.random.default_rng(1)
    run = Run(space)
    forced = 0
    while space.log_bytes < 10 * quota:
        with space.version() as join:
            for port in range(3):
                keys = rng.integers(0, 8_000, 300).tolist()
                run.send(join, port, [(key, 0, INFINITY, (key, b"w" * 500)) for key in keys])
            forced += join.statistics["forced_spills"]
    assert forced > 10
    space.lose_arena()
    with space.version() as join:
        run.clean(join, None, last=True)
        assert join.statistics["late"] > 1000
    assert space.peak <= quota
    run.check()


def test_a_full_join_makes_room_for_what_it_reads(tmp_path: Path) -> None:
    space = JoinSpace(str(tmp_path), spec_of(2), quota=1 << 18)
    run = Run(space)
    with space.version() as join:
        while not join.statistics["forced_spills"]:
            keys = range(sum(run.came[0].values()), sum(run.came[0].values()) + 50)
            run.send(join, 0, [(key, 0, INFINITY, payload_of(0, key)) for key in keys])
        held = int(join.sizes().sum())
    with space.version() as join:
        join.reserve(space.quota // 2)
        assert join.ended().any()
        assert int(join.sizes().sum()) < held
    assert space.peak <= space.quota


def test_bounded_clean_up_of_one_key_that_exceeds_the_quota(tmp_path: Path) -> None:
    """Rows of one key that are twice the quota are combined block by block."""
    quota = 1 << 18
    spec = spec_of(2, partitions=4)
    space = JoinSpace(str(tmp_path), spec, quota=quota)
    run = Run(space)
    late = 0
    for version in range(20):
        with space.version() as join:
            wide = (None, version, [version] * 1200)
            run.send(join, 1, [(6, version, version + 1, wide)] * 4)
            run.send(join, 0, [(6, 7, 8, (version,)), (7, 0, 9, (version,))])
            run.send(join, 0, [(6, 100, 101, (n,)) for n in range(200)])
    assert space.log_bytes > 2 * quota
    with space.version() as join:
        run.clean(join, None, last=True)
        late = join.statistics["late"]
    assert late > 0
    assert space.peak <= quota
    run.check()


def test_bounded_a_hot_key_comes_in_pieces(tmp_path: Path) -> None:
    """A product of a million results is handed on in pieces, without its list in memory."""
    space = JoinSpace(str(tmp_path), MultiJoinSpec(0, (NUMBERS,) * 3, ((0, "x", "x"),), 4))
    with space.version() as join:
        for port in range(2):
            rows = [(5, 0, 9, (n,)) for n in range(1000)]
            assert list(join.on_changes(port, sent(NUMBERS, rows))) == []
        sizes = [made.num_rows for made in join.on_changes(2, sent(NUMBERS, [(5, 0, 9, (1,))]))]
    assert sum(sizes) == 10**6
    assert max(sizes) <= 1 << 16


def test_bounded_ended_rows_leave_the_log(tmp_path: Path) -> None:
    """With lifetimes that end, memory and log stay as they are however long it runs."""
    space = JoinSpace(str(tmp_path), spec_of(2), quota=1 << 20)
    run = Run(space)
    rng = np.random.default_rng(2)
    sizes, logs = [], []
    for version in range(120):
        with space.version(version * 50) as join:
            for port in range(2):
                run.send(join, port, random_rows(rng, port, 20, 200, version * 50, 100))
            if version % 10 == 4:
                join.spill(np.arange(8))
            if version % 10 == 6:
                run.clean(join, None)
            sizes.append(int(join.sizes().sum()))
        logs.append(space.log_bytes)
    assert max(sizes[60:]) <= 1.5 * max(sizes[:60])
    assert max(logs[60:]) <= 1.5 * max(logs[:60])
    with space.version() as join:
        run.clean(join, None)
    run.check()


def test_a_row_larger_than_the_quota_says_what_is_missing(tmp_path: Path) -> None:
    space = JoinSpace(str(tmp_path), spec_of(2), quota=1 << 17)
    row = (1, 0, 9, ("a" * (1 << 18), 1, None))
    with pytest.raises(BudgetError, match="needs 260"), space.version() as join:
        list(join.on_changes(1, sent(MIXED, [row])))


def test_sizes_are_those_of_resident_rows(tmp_path: Path) -> None:
    """Bytes by partition follow what comes and leaves, and are the same after a restore."""
    space = JoinSpace(str(tmp_path), spec_of(2))
    run = Run(space)
    rng = np.random.default_rng(0)
    with space.version() as join:
        for port in range(2):
            run.send(join, port, random_rows(rng, port, 50, 40))
        sizes = join.sizes()
        some = np.flatnonzero(sizes)[:2]
        assert join.spill(some) == sizes[some].sum()
        left = join.sizes()
        assert (left[some] == 0).all()
        others = np.setdiff1d(np.arange(8), some)
        np.testing.assert_array_equal(left[others], sizes[others])
    space.lose_arena()
    with space.version() as join:
        np.testing.assert_array_equal(join.sizes(), left)
        assert join.spill(np.arange(8)) == left.sum()
        assert join.statistics["resident_bytes"] == 0


def test_every_row_is_logged_once(tmp_path: Path) -> None:
    space = JoinSpace(str(tmp_path), spec_of(2))
    run = Run(space)
    rng = np.random.default_rng(0)
    written = []
    for version in range(3):
        with space.version() as join:
            run.send(join, 0, random_rows(rng, 0, 50, 40))
            if version == 1:
                join.spill(np.arange(8))
            if version == 2:
                run.clean(join, None)
        written.append(join_bytes(space))
    assert written == [50 * 6 * 8 * n for n in (1, 2, 3)]


def join_bytes(space: JoinSpace) -> int:
    """Return the payload bytes of all records with rows."""
    total = 0
    for past in space.history:
        for lifetime, info in past.segments:
            if lifetime == "joined":
                reader = SegmentReader(space.files, f"{space.folder}/{info.name}")
                with closing(reader):
                    total += int(reader.directory["length"].sum())
    return total


def test_identities_of_neighbouring_keys_share_a_half() -> None:
    assert identity(4)[0] == identity(5)[0]
    assert identity(4)[1] != identity(5)[1]
