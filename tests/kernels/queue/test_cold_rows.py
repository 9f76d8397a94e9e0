from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels.queue import cold_rows as k
from tests.oracles.kernels.queue.cold_rows import RowsReference

WIDTH, PLACES, REGIONS = 5, 7, 6
DUES = np.array([3], dtype=np.int64)
WORDS = np.arange(WIDTH)
INFINITY = 2**63 - 1


def test_parity_rows_in_regions_beside_a_dictionary() -> None:
    """Regions fill up, searches go around their end, and rows move back when others are removed."""
    dice = np.random.default_rng(7)
    table = np.zeros((REGIONS * PLACES, 1 + WIDTH), dtype=np.int64)
    fences = np.full((REGIONS, 1), INFINITY)
    plain = RowsReference()

    def sorted_rows(keys: Ints) -> tuple[Ints, Ints, Table]:
        regions = keys * 5 % REGIONS
        order = np.argsort(regions, kind="stable")
        keys = keys[order]
        rows = dice.integers(0, 100, (len(keys), WIDTH))
        rows[:, 0], rows[:, 1] = keys, -keys
        # few places to begin at, some of them at the end
        marks = (keys % 3 + PLACES - 2) * (1 << k.PLACE_BITS) // PLACES + 1
        return regions[order], marks, rows

    refused = 0
    for _ in range(400):
        regions, marks, rows = sorted_rows(dice.permutation(60)[: dice.integers(1, 12)])
        chosen = dice.random(len(rows)) < 0.8
        tried, before = chosen.copy(), len(plain.rows)
        new = k.put_rows(table, PLACES, regions, marks, WORDS, rows, chosen, DUES, fences)
        assert not (chosen & ~tried).any()
        plain.put(rows[tried & ~chosen])
        assert len(plain.rows) == before + new
        refused += int(chosen.sum())
        for taking in (False, True):
            regions, marks, rows = sorted_rows(dice.permutation(60)[:8])
            given, found = rows.copy(), np.zeros(len(rows), dtype=np.bool_)
            k.visit_rows(table, PLACES, regions, marks, WORDS, rows, found, taking)
            assert found.tolist() == [(int(a), int(b)) in plain.rows for a, b in given[:, :2]]
            keys = [(int(a), int(b)) for a, b in given[found, :2]]
            assert rows[found].tolist() == [plain.rows[key] for key in keys]
            if taking:
                plain.take(keys)
        out = np.empty((REGIONS * PLACES, WIDTH), dtype=np.int64)
        before = int(dice.integers(0, 30))
        count = k.collect_rows(table, PLACES, WORDS, DUES, 0, before, fences, out)
        assert sorted(out[:count].tolist()) == sorted(plain.collect(3, before))
        count = k.collect_rows(table, PLACES, WORDS, DUES, -1, INFINITY, fences, out)
        assert sorted(out[:count].tolist()) == sorted(plain.rows.values())
        for region in range(REGIONS):
            mine = [row[3] for row in plain.rows.values() if row[0] * 5 % REGIONS == region]
            assert fences[region, 0] <= min(mine, default=INFINITY)
    assert refused
