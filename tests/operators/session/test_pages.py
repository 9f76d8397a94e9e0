from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import BudgetError, StorageError
from icestream.core.times import MINUS_INFINITY
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.exact_rows import ExactRows
from icestream.operators.session.fragments import Fragments
from icestream.operators.session.page_file import PageFile
from icestream.operators.session.pages import Pages
from icestream.operators.session.rows import Sessions, united
from icestream.operators.session.spec import SessionSpec
from icestream.plan.windows.session import Session
from icestream.state.arena import Arena
from icestream.state.budget import Budget

SPEC = SessionSpec(
    (Aggregate("count", None, "n"),),
    pa.schema([("name", pa.string())]),
    pa.schema([]),
    Session(10),
)
SPREAD = 2**64 // 1000


def sessions(chosen: list[tuple[int, int]]) -> Sessions:
    """Make one-event sessions of (group below 1000, start)."""
    rows = np.array([[0, 7, start, start + 10, 1] for _, start in chosen], dtype=np.int64)
    rows = rows.reshape(-1, 5)
    id_high = np.array([group * SPREAD for group, _ in chosen], dtype=np.uint64)
    rows[:, 0] = id_high.view(np.int64)
    keys = pa.record_batch([pa.array([f"key {g}" for g, _ in chosen], pa.string())], SPEC.keys)
    return united([Sessions(ExactRows(SPEC.layout, rows), keys), Sessions.none(SPEC)], SPEC)


def advance(
    pages: Pages, arena: Arena, news: Sessions, closed: int, watermark: int
) -> list[tuple[Any, ...]]:
    """Merge a run in and return what was due."""
    fragments = Fragments(SPEC, arena.path("fragments"), 300)
    fragments.newest = news
    return reported(pages.advance(fragments, closed, watermark))


def reported(parts: Iterator[Sessions] | list[Sessions]) -> list[tuple[Any, ...]]:
    return sorted(
        (key, *row[2:])
        for part in parts
        for key, row in zip(part.keys.column(0).to_pylist(), part.rows.tolist(), strict=True)
    )


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena.create(str(tmp_path), Budget(1 << 20).account("groups"))


batches = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=60),
              st.integers(0, 25)),
    max_size=8,
)  # fmt: skip


@given(batches=batches, size=st.sampled_from((200, 1000, 10_000)))
@settings(max_examples=60)
def test_parity_pages_beside_a_sorted_list(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[list[tuple[int, int]], int]],
    size: int,
) -> None:
    folder = str(tmp_path_factory.mktemp("arena"))
    arena = Arena.create(folder, Budget(1 << 20).account("groups"))
    model = Sessions.none(SPEC)
    closed = 0
    for chosen, step in batches:
        news = sessions([(group, closed + start) for group, start in chosen])
        watermark = closed + step
        pages = Pages(SPEC, arena, size)
        found = advance(pages, arena, news, closed, watermark)
        model = model.merged(news)
        due = model.ends <= watermark
        assert found == reported([model.where(due)])
        model = model.where(~due)
        left = [part.where(part.ends > watermark) for part in pages.contents()]
        assert reported(left) == reported([model])
        directory = pages.directory
        assert (np.diff(directory["low"].astype(np.float64)) > 0).all()
        assert int(directory["open"].sum()) == len(model)
        assert int(directory["groups"].sum()) == model.groups
        for page, part in zip(directory, left, strict=True):
            assert page["earliest"] == part.ends.min()
        closed = watermark


def test_a_pass_reads_only_pages_with_news(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(SPEC, arena, 1000)
    everyone = sessions([(group, group % 7) for group in range(1000)])
    assert not advance(pages, arena, everyone, MINUS_INFINITY, MINUS_INFINITY)
    assert len(pages) > 50
    read = []
    original = PageFile.bytes_of

    def counted(self: PageFile, page: np.void) -> bytes:
        read.append(int(page["low"]))
        return original(self, page)

    monkeypatch.setattr(PageFile, "bytes_of", counted)
    assert not advance(pages, arena, sessions([(3, 3), (500, 2)]), MINUS_INFINITY, 9)
    assert len(read) == 2
    read.clear()
    assert not advance(pages, arena, Sessions.none(SPEC), MINUS_INFINITY, 9)
    assert read == []


def test_a_page_with_sessions_due_is_read_and_not_written(arena: Arena) -> None:
    pages = Pages(SPEC, arena, 100_000)
    advance(pages, arena, sessions([(g, g) for g in range(100)]), MINUS_INFINITY, MINUS_INFINITY)
    before = pages.directory
    assert len(advance(pages, arena, Sessions.none(SPEC), MINUS_INFINITY, 29)) == 20
    assert pages.directory["place"].tolist() == before["place"].tolist()
    assert (pages.directory["rows"].sum(), pages.directory["open"].sum()) == (100, 80)
    assert len(advance(pages, arena, Sessions.none(SPEC), 29, 70)) == 41
    assert pages.directory["rows"].sum() == 39


def test_bounded_the_file_follows_its_pages(arena: Arena) -> None:
    dice = np.random.default_rng(2)
    pages = Pages(SPEC, arena, 1000)
    for version in range(150):
        groups = dice.integers(0, 1000, size=int(dice.integers(1, 120))).tolist()
        news = sessions([(group, version) for group in groups])
        advance(pages, arena, news, version - 1, version)
        folder = os.path.dirname(arena.path("x"))
        names = [name for name in os.listdir(folder) if name.startswith("sessions-")]
        assert len(names) == 1
        size = os.path.getsize(os.path.join(folder, names[0]))
        assert size <= 3 * pages.size + 20_000


def test_pages_are_filled_anew_with_what_is_open(arena: Arena) -> None:
    pages = Pages(SPEC, arena, 1000)
    advance(pages, arena, sessions([(g, g) for g in range(300)]), MINUS_INFINITY, MINUS_INFINITY)
    copies = list(pages.contents())
    pages.fill(part.where(part.ends > 100) for part in copies)
    expected = [(f"key {g}", g, g + 10, 1) for g in range(300) if g + 10 > 100]
    assert reported(pages.contents()) == sorted(expected)


def test_a_group_with_many_sessions_stays_in_one_page(arena: Arena) -> None:
    pages = Pages(SPEC, arena, 1000)
    chosen = [(5, 20 * n) for n in range(300)] + [(6, 0), (4, 0)]
    advance(pages, arena, sessions(chosen), MINUS_INFINITY, MINUS_INFINITY)
    assert max(pages.directory["open"].tolist()) >= 300
    assert pages.directory["groups"].sum() == 3


def test_bounded_a_group_with_too_many_sessions_says_so(arena: Arena) -> None:
    pages = Pages(SPEC, arena, 1000, 10_000)
    chosen = [(5, 20 * n) for n in range(300)]
    with pytest.raises(BudgetError, match=r"one group take .* longer gap or a shorter slack"):
        advance(pages, arena, sessions(chosen), MINUS_INFINITY, MINUS_INFINITY)


def test_a_page_that_rotted_is_named(arena: Arena) -> None:
    pages = Pages(SPEC, arena, 1000)
    advance(pages, arena, sessions([(1, 1)]), MINUS_INFINITY, MINUS_INFINITY)
    with open(arena.path("sessions-0"), "r+b") as file:
        file.seek(3)
        file.write(b"rot")
    with pytest.raises(StorageError, match="sessions-0 does not hold what was written"):
        advance(pages, arena, sessions([(1, 1)]), MINUS_INFINITY, MINUS_INFINITY)


def test_a_full_disk_says_what_to_do(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(StorageError, match="the disk is full"):
        advance(Pages(SPEC, arena, 1000), arena, sessions([(1, 1)]), 0, 0)
