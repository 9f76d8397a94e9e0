from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels.queue import cold_pages as k
from tests.oracles.kernels.queue.cold_pages import PagesReference

WIDTH, ROOM, PAGES, HOMES = 5, 3, 24, 16
TIMES = 3
INFINITY = 2**63 - 1


def places_of(table: Table) -> dict[int, int]:
    """Return the page of every key."""
    return {
        int(table[page, k.HEAD + ROOM + place * WIDTH]): page
        for page in range(PAGES)
        for place in range(table[page, k.COUNT])
    }


def test_parity_rows_in_pages_beside_a_dictionary() -> None:
    dice = np.random.default_rng(7)
    pages = np.zeros((PAGES, k.HEAD + ROOM * (1 + WIDTH)), dtype=np.int64)
    fences = np.full(PAGES, INFINITY)
    plain = PagesReference()

    def sorted_rows(keys: Ints) -> tuple[Ints, Ints, Table]:
        homes = keys * 5 % HOMES
        order = np.argsort(homes, kind="stable")
        rows = dice.integers(0, 100, (len(keys), WIDTH))
        rows[:, 0], rows[:, 1] = keys[order], -keys[order]
        return homes[order], keys[order] % 4, rows

    for _ in range(300):
        keys = dice.permutation(60)[: dice.integers(1, 12)]
        before = places_of(pages)
        fresh = np.array([key for key in keys if (key, -key) not in plain.rows], dtype=np.int64)
        homes, tags, rows = sorted_rows(fresh)
        if len(plain.rows) + len(fresh) <= 40:
            assert k.put_rows(pages, ROOM, homes, tags, rows, TIMES, fences) == len(fresh)
            plain.put(rows)
        for mode in (k.LOOK, k.OVER, k.TAKE):
            named = dice.permutation(60)[:8]
            homes, tags, rows = sorted_rows(named)
            given = rows.copy()
            found = np.zeros(len(named), dtype=np.bool_)
            k.visit_rows(pages, ROOM, homes, tags, rows, found, mode)
            there = [(int(row[0]), int(row[1])) in plain.rows for row in given]
            assert found.tolist() == there
            if mode == k.OVER:
                plain.put(given[found])
            elif mode == k.LOOK:
                assert rows[found].tolist() == [plain.rows[a, b] for a, b in given[found, :2]]
            else:
                identities = [(int(a), int(b)) for a, b in given[:, :2]]
                assert rows[found].tolist() == plain.take(identities)
        after = places_of(pages)
        assert all(before[key] == page for key, page in after.items() if key in before)
        out = np.empty((PAGES * ROOM, WIDTH), dtype=np.int64)
        count = k.collect_rows(pages, ROOM, -1, INFINITY, np.zeros(PAGES, dtype=np.int64), out)
        assert sorted(out[:count].tolist()) == sorted(plain.rows.values())


def test_parity_rows_that_are_due_are_those_of_all_pages() -> None:
    pages = np.zeros((PAGES, k.HEAD + ROOM * (1 + WIDTH)), dtype=np.int64)
    fences = np.full(PAGES, INFINITY)
    keys = np.arange(40)
    rows = np.column_stack((keys, -keys, keys, keys * 3 % 40, keys))
    assert k.put_rows(pages, ROOM, keys * HOMES // 40, keys, rows, TIMES, fences) == 40
    out = np.empty((PAGES * ROOM, WIDTH), dtype=np.int64)
    count = k.collect_rows(pages, ROOM, TIMES, 10, fences, out)
    assert sorted(out[:count, TIMES].tolist()) == list(range(10))
    assert fences.min() == 10
    assert k.collect_rows(pages, ROOM, TIMES, 10, fences, out) == 0
