"""Entries in sorted files, beside a dictionary."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY
from icestream.kernels import sorted_run as kernels
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.index import sorted_run
from icestream.state.index.sorted_index import ColdIndex

#: identity, payload, due; a payload of 0 says that the group is gone
WIDTH = 4
Entry = tuple[int, int]


def is_empty(entries: Ints) -> npt.NDArray[np.bool_]:
    return np.asarray(entries[:, 2] == 0)


def index_in(arena: Arena, page_bytes: int = 128, work: int = 256) -> ColdIndex:
    return ColdIndex(arena, "groups", WIDTH, (3,), page_bytes, work, is_empty)


def arena_in(folder: Path) -> Arena:
    return Arena.create(str(folder), Budget(1 << 22).account("arena"))


def table_of(entries: dict[Entry, Entry]) -> Ints:
    rows = [(*key, *value) for key, value in sorted(entries.items())]
    return np.array(rows, dtype=np.uint64).reshape(-1, WIDTH).view(np.int64)


def draw(dice: np.random.Generator, count: int) -> dict[Entry, Entry]:
    """Draw entries of which many share id_high."""
    return {
        (int(dice.integers(0, 8)) << 60, int(dice.integers(0, 40))): (
            int(dice.integers(0, 4)),
            int(dice.integers(0, 50)),
        )
        for _ in range(count)
    }


@pytest.mark.parametrize("seed", range(6))
def test_oracle_an_index_is_a_dictionary(tmp_path: Path, seed: int) -> None:
    dice = np.random.default_rng(seed)
    arena = arena_in(tmp_path)
    index = index_in(arena, page_bytes=int(dice.choice([32, 128, 4096])))
    expected: dict[Entry, Entry] = {}
    for _ in range(25):
        news = draw(dice, int(dice.choice([1, 3, 30])))
        expected |= news
        index.merge(table_of(news))
        live = {key: value for key, value in expected.items() if value[0]}
        blocks = list(index.scan())
        assert np.concatenate([table_of({}), *blocks]).tolist() == table_of(live).tolist()
        since = max(live, default=(0, 0))[0]
        later = np.concatenate([table_of({}), *index.scan(since=since)])
        last = {key: value for key, value in live.items() if key[0] >= since}
        assert later[later[:, 0].view(np.uint64) >= since].tolist() == table_of(last).tolist()
        asked = sorted({*draw(dice, 30), *list(expected)[:5]})
        id_high, id_low = (np.array([key[c] for key in asked], dtype=np.uint64) for c in (0, 1))
        found, entries = index.fetch(id_high, id_low)
        there = {
            key: expected[key] for key, here in zip(asked, found.tolist(), strict=True) if here
        }
        assert entries.tolist() == table_of(there).tolist()
        assert not [key for key in asked if key in live and key not in there]
    files = [name for name in os.listdir(arena._folder) if ".run-" in name]
    assert len(files) == index.runs
    more = draw(dice, 10)
    merged = [block for block in index.scan(table_of(more)) if len(block)]
    visible = {key: value for key, value in (expected | more).items() if value[0]}
    assert np.concatenate([table_of({}), *merged]).tolist() == table_of(visible).tolist()


def test_identities_are_known_to_lie_between_two(tmp_path: Path) -> None:
    index = index_in(arena_in(tmp_path))
    assert index.span == (0, 0)
    for first in (1 << 63, 3 << 62):
        index.merge(table_of({(first + n, 0): (1, 1) for n in range(0, 1_000, 10)}))
    assert index.span == (1 << 63, (3 << 62) + 990)


def test_a_page_is_read_for_what_is_due_and_not_again_for_that(tmp_path: Path) -> None:
    index = index_in(arena_in(tmp_path))
    entries = {(n << 40, n): (1, n % 10) for n in range(100)}
    index.merge(table_of(entries))
    found = np.concatenate(list(index.due(0, 3)))
    assert sorted(found[:, 1].tolist()) == [n for n in range(100) if n % 10 <= 3]
    assert sum(map(len, index.due(0, 3))) == 0
    later = np.concatenate(list(index.due(0, 5)))[:, 3].tolist()
    assert (later.count(4), later.count(5), max(later)) == (10, 10, 5)
    index.merge(table_of({(7 << 40, 7): (1, 2)}))
    assert 7 in np.concatenate(list(index.due(0, 2)))[:, 1].tolist()


def test_what_was_not_taken_is_due_again(tmp_path: Path) -> None:
    index = index_in(arena_in(tmp_path))
    index.merge(table_of({(n << 40, n): (1, 0 if n < 50 else INFINITY) for n in range(100)}))
    for _ in index.due(0, 0):
        break
    assert sum(map(len, index.due(0, 0))) == 50


def test_bounded_an_index_has_few_runs(tmp_path: Path) -> None:
    dice = np.random.default_rng(1)
    index = index_in(arena_in(tmp_path), 4096, 1 << 20)
    written = most = 0
    writer = sorted_run.RunWriter._write

    def counted(self: sorted_run.RunWriter, rows: Ints) -> None:
        nonlocal written
        written += len(rows)
        writer(self, rows)

    with mock.patch.object(sorted_run.RunWriter, "_write", counted):
        for _ in range(200):
            identities = np.sort(dice.integers(0, 2**63, 100))
            index.merge(
                np.column_stack([identities, identities, np.ones((100, 2), dtype=np.int64)])
            )
            most = max(most, index.runs)
    assert len(index) == 20_000
    assert most <= 21
    assert written <= 4 * 20_000


def test_bounded_an_index_forgets_what_is_out_of_date(tmp_path: Path) -> None:
    dice = np.random.default_rng(3)
    index = index_in(arena_in(tmp_path), 4096, 1 << 20)
    for _ in range(300):
        identities = np.sort(dice.choice(5_000, 400, replace=False)) << 40
        ones = np.ones((len(identities), 2), dtype=np.int64)
        known = index.fetch(*[identities.view(np.uint64)] * 2)[0].sum()
        index.merge(np.column_stack([identities, identities, ones]), int(known))
        assert len(index) <= 2 * 5_000
    assert sum(map(len, index.scan())) == 5_000


def test_bounded_runs_of_any_sizes_are_few(tmp_path: Path) -> None:
    dice = np.random.default_rng(2)
    index = index_in(arena_in(tmp_path), 4096, 1 << 20)
    for _ in range(300):
        identities = np.sort(dice.choice(1 << 40, int(dice.integers(1, 4) ** 7), replace=False))
        ones = np.ones((len(identities), 2), dtype=np.int64)
        index.merge(np.column_stack([identities, identities, ones]))
        assert index.runs <= 24


def test_bounded_a_run_reads_a_few_pages_at_a_time(tmp_path: Path) -> None:
    index = index_in(arena_in(tmp_path), page_bytes=128, work=512)
    entries = {(n << 40, n): (1, n) for n in range(1000)}
    index.merge(table_of(entries))
    read = os.pread
    most = 0

    def watched(handle: int, size: int, place: int) -> bytes:
        nonlocal most
        most = max(most, size)
        return read(handle, size, place)

    with mock.patch.object(os, "pread", watched):
        keys = np.arange(1000, dtype=np.uint64)
        assert index.fetch(keys << np.uint64(40), keys)[0].all()
        assert sum(map(len, index.scan())) == 1000
        assert sum(map(len, index.due(0, 500))) == 501
    # 16 pages of entries, or the fences of a guide
    assert most <= max(2048, 16 * kernels.GUIDED)


@pytest.mark.parametrize("seed", range(3))
def test_parity_a_run_beside_a_dictionary(tmp_path: Path, seed: int) -> None:
    entries = {key: (1, due) for key, (_, due) in draw(np.random.default_rng(seed), 60).items()}
    shape = sorted_run.EntryFormat(WIDTH, (3,), 3, 2)
    writer = sorted_run.RunWriter(str(tmp_path / "run"), shape, 100)
    for row in table_of(entries):
        writer.add(row[None])
    writer.finish()
    path = str(tmp_path / "run")
    mapped = sorted_run.SortedRun(path, shape, 100, writer.count, writer.guides).mapped()
    words = mapped.words[mapped.before :].reshape(-1, WIDTH)
    assert mapped.words[: len(words)].tolist() == words[:, 0].tolist()
    assert words.tolist() == table_of(entries).tolist()
    for since in [0, 1 << 60, 5 << 60, (5 << 60) + 1, (1 << 64) - 1]:
        left = words[mapped.since(since).place :, 0].view(np.uint64)
        assert (left >= since).all()
        assert len(left) == sum(id_high >= since for id_high, _ in entries)


def test_guides_have_the_least_of_their_fences(tmp_path: Path) -> None:
    count, path = 3 * kernels.GUIDED - 10, str(tmp_path / "run")
    dice = np.random.default_rng(5)
    entries = {(n << 40, n): (1, int(due)) for n, due in enumerate(dice.integers(0, 1000, count))}
    shape = sorted_run.EntryFormat(WIDTH, (3,), 1, 100)
    writer = sorted_run.RunWriter(path, shape, count)
    writer.add(table_of(entries))
    writer.finish()
    assert writer.guides[:, 0].tolist() == [n * kernels.GUIDED << 40 for n in range(3)]
    run = sorted_run.SortedRun(path, shape, count, count, writer.guides)
    due = [0, *sorted(dice.integers(0, 1000, 5).tolist()), 1000]
    for watermark in due:
        times = [when for _, when in entries.values()]
        thirds = [times[n : n + kernels.GUIDED] for n in range(0, count, kernels.GUIDED)]
        assert writer.guides[:, 1].tolist() == [min(third) for third in thirds]
        found = np.concatenate([table_of({}), *run.due(0, watermark)])
        wanted = {key: value for key, value in entries.items() if value[1] <= watermark}
        assert found.tolist() == table_of(wanted).tolist()
        entries |= dict.fromkeys(wanted, (1, INFINITY))


def test_bounded_an_index_takes_little_memory(tmp_path: Path) -> None:
    arena = arena_in(tmp_path)
    index = index_in(arena, page_bytes=128, work=1 << 16)
    before = arena.bytes
    for first in range(0, 100_000, 20_000):
        numbers = np.arange(first, first + 20_000) << 40
        index.merge(np.column_stack([numbers, numbers, np.ones((20_000, 2), dtype=np.int64)]))
    # a page has four entries of 32 bytes
    assert arena.bytes - before <= 16 * (100_000 // 4 // kernels.GUIDED + 5) + 4096


def test_a_refused_merge_leaves_the_index_as_it_was(tmp_path: Path) -> None:
    index = index_in(arena_in(tmp_path))
    index.merge(table_of({(1, 1): (1, 1)}))
    failure = mock.patch.object(sorted_run.RunWriter, "finish", side_effect=RuntimeError)
    with failure, pytest.raises(RuntimeError):
        index.merge(table_of({(2, 2): (1, 1)}))
    assert np.concatenate(list(index.scan())).tolist() == [[1, 1, 1, 1]]


def test_who_asks_for_one_synopsis_takes_nothing_from_another(tmp_path: Path) -> None:
    arena = arena_in(tmp_path)
    index = ColdIndex(arena, "groups", WIDTH, (2, 3), 128, 256, is_empty)
    index.merge(table_of({(n << 40, n): (1 + n % 2, 1 + n % 5) for n in range(60)}))
    assert sum(map(len, index.due(0, 1))) == 30
    assert sum(map(len, index.due(1, 1))) == 12
