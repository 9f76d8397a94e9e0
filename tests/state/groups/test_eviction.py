"""Who stays in the directory, and what comes back from the cold index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.arrays import Ids, Ints
from icestream.state.groups.options import StoreOptions
from icestream.state.groups.spec import GroupRows, Synopsis
from icestream.state.groups.store import GroupStore
from icestream.state.keys import KeyCodec
from tests.fixtures.group_space import GroupSpace

KEY = pa.schema([pa.field("key", pa.int64(), nullable=False)])
TOTALS = (Synopsis("totals", pa.schema([("n", pa.int64()), ("total", pa.int64())])),)
QUOTA = 1 << 18


def identities(groups: Ints) -> tuple[Ids, Ids]:
    return KeyCodec(KEY).identify(pa.record_batch([groups], schema=KEY))


def chunks(store: GroupStore, groups: Ints) -> Iterator[Ints]:
    """Begin chunks of some groups."""
    while len(groups):
        store.begin(0)
        most = store.chunk_groups
        yield groups[:most]
        groups = groups[most:]


def count(store: GroupStore, groups: Ints) -> None:
    """Add one to each of some groups."""
    for some in chunks(store, groups):
        slots = np.sort(store.locate(*identities(some)))
        for portion in store.portions(slots):
            old, n = store.read(0, portion), np.ones(len(portion), dtype=np.int64)
            n[old.owners] += np.asarray(old.rows.column(0))
            new = pa.record_batch([n, 2 * n], TOTALS[0].schema)
            store.rewrite(0, portion, GroupRows(np.arange(len(portion)), new))


def counts(store: GroupStore, groups: Ints) -> list[int]:
    """Return how often groups were counted."""
    found: list[int] = []
    for some in chunks(store, groups):
        slots = store.locate(*identities(some))
        read: dict[int, int] = {}
        for portion in store.portions(np.sort(slots)):
            rows = store.read(0, portion)
            owners = portion[rows.owners].tolist()
            read |= dict(zip(owners, rows.rows.column(0).to_pylist(), strict=True))
        found += [read[slot] for slot in slots.tolist()]
    return found


def test_groups_named_often_stay_in_the_directory(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), TOTALS, quota=QUOTA)
    often = np.arange(100)
    for version in range(12):
        with space.version() as store:
            # far more than the directory has places for
            count(store, np.concatenate((often, np.arange(1000, 4000) + 3000 * (version % 2))))
    with space.version() as store:
        assert store.directory.most < 1500
        assert (store.directory.find(*identities(often)) >= 0).all()
        assert counts(store, often) == [12] * 100


@pytest.mark.parametrize("durability", ["log", "evict"])
def test_a_small_group_comes_back_without_a_read(tmp_path: Path, durability: str) -> None:
    options = StoreOptions(durability)  # type: ignore[arg-type]
    space = GroupSpace(str(tmp_path), TOTALS, options, quota=QUOTA)
    groups = np.arange(5000)
    for _ in range(3):
        with space.version() as store:
            count(store, groups)
    with space.version() as store:
        assert counts(store, groups) == [3] * len(groups)
        assert store.statistics["promoted"] > 10_000
        assert store.statistics["extents_read"] == store.statistics["returned"] == 0


def test_groups_that_are_not_inline_are_read(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), TOTALS, StoreOptions(carried_words=2), quota=QUOTA)
    groups = np.arange(5000)
    for _ in range(2):
        with space.version() as store:
            count(store, groups)
    with space.version() as store:
        assert counts(store, groups) == [2] * len(groups)
        assert store.statistics["returned"] > 5000


def test_groups_are_known_wherever_they_are_and_not_opened_for_that(tmp_path: Path) -> None:
    space = GroupSpace(str(tmp_path), TOTALS, quota=QUOTA)
    with space.version() as store:
        count(store, np.arange(6_000))
    asked = np.random.default_rng(3).permutation(np.arange(-3_000, 9_000))
    with space.version() as store:
        before = store.directory.groups
        assert 0 < before < 6_000
        known = store.knows(*identities(asked))
        assert known.tolist() == ((asked >= 0) & (asked < 6_000)).tolist()
        assert store.directory.groups == before
