from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.cold.keyed_rows import KeyedStream
from bench.joins import pair_agreement
from bench.joins.pair_agreement import Unpaired

LEFT, RIGHT = KeyedStream("left", 12_345, 40, 2.5), KeyedStream("right", 54_321, 40, 2.5)
ROWS, WITHIN_MS = 300, 700


def plain_pairs() -> list[tuple[int, int]]:
    times, keys, _ = LEFT.columns(0, ROWS)
    other_times, other_keys, _ = RIGHT.columns(0, ROWS)
    near = np.abs(times[:, None] - other_times[None, :]) <= WITHIN_MS
    both = near & (keys[:, None] == other_keys[None, :])
    return [(int(left), int(right)) for left, right in zip(*np.nonzero(both), strict=True)]


def written(folder: Path, pairs: list[tuple[int, int]]) -> Path:
    folder.mkdir()
    for part, some in enumerate((pairs[::2], pairs[1::2])):
        left, right = (np.array(side, dtype=np.int64) for side in zip(*some, strict=True))
        table = pa.table({"key": left * 0, "left_id": left, "right_id": right})
        pq.write_table(table, folder / f"{part}.parquet")
    return folder


def test_oracle_expected_pairs_follow_the_definition(tmp_path: Path) -> None:
    pairs = plain_pairs()
    assert len(pairs) > 100
    found, *unpaired = pair_agreement.of_parquet(written(tmp_path / "all", pairs))
    assert [len(each.ids) for each in unpaired] == [0, 0]
    assert found == pair_agreement.expected(LEFT, RIGHT, ROWS, WITHIN_MS)
    assert found.count == len(pairs)


def test_a_wrong_pair_shows(tmp_path: Path) -> None:
    pairs = plain_pairs()
    right = pair_agreement.expected(LEFT, RIGHT, ROWS, WITHIN_MS)
    first, second = pairs[0], pairs[1]
    wrong = {
        "missing": pairs[1:],
        "twice": [*pairs, first],
        "swapped for another": [*pairs[1:], second],
        "other": [(first[0], ROWS + 1), *pairs[1:]],
    }
    for name, some in wrong.items():
        assert pair_agreement.of_parquet(written(tmp_path / name, some))[0] != right, name


def test_a_wrong_row_without_a_partner_shows(tmp_path: Path) -> None:
    alone = pair_agreement.alone(LEFT, RIGHT, ROWS, WITHIN_MS)
    paired = {left for left, _ in plain_pairs()}
    assert np.flatnonzero(alone).tolist() == sorted(set(range(ROWS)) - paired)
    ids, due = np.flatnonzero(alone), ROWS - 100
    table = pa.table({"left_id": ids, "right_id": pa.nulls(len(ids), pa.int64())})
    pq.write_table(table, tmp_path / "0.parquet")
    pairs, found, others = pair_agreement.of_parquet(tmp_path)
    assert (pairs.count, len(others.ids)) == (0, 0)
    assert found.agrees(alone, due)
    assert Unpaired(ids[ids < due]).agrees(alone, due)
    wrong = (ids[1:], np.append(ids, ids[:1]), np.append(ids, min(paired)))
    assert not any(Unpaired(each).agrees(alone, due) for each in wrong)
