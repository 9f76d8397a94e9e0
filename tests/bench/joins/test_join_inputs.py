from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from bench.joins.join_inputs import (
    HIGH,
    LOW,
    PARTITIONS,
    SETTINGS,
    STREAMS,
    VALUES,
    JoinInputs,
)
from icestream.operators.multi_join.spec import partitions_of
from icestream.state.keys import identified

#: the columns that meet in each join
MEETING = (("a1", "b1", "c1"), ("c2", "d1"), ("d2", "e1"))


def homes(
    values: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    id_high, _ = identified(pa.record_batch({"v": values}), ("v",))
    return partitions_of(id_high, PARTITIONS)


@pytest.mark.parametrize("ratios", SETTINGS)
def test_values_come_as_often_as_their_ratio_says(ratios: tuple[int, ...]) -> None:
    inputs = JoinInputs(ratios, 60_000)
    for ratio, names in zip(ratios, MEETING, strict=True):
        for name in names:
            column = inputs.columns[name]
            partitions = homes(column)
            assert set(np.bincount(partitions, minlength=PARTITIONS)) == {200}
            values = [len(np.unique(column[partitions == each])) for each in range(PARTITIONS)]
            often = np.sort(200 / np.array(values))
            half = PARTITIONS // 2
            # a partition with a ratio below one has more values than come
            assert often[:half] == pytest.approx(max(1.0, LOW * ratio), rel=0.1)
            assert often[half:] == pytest.approx(max(1.0, HIGH * ratio), rel=0.1)


def test_ratios_of_consecutive_joins_are_independent() -> None:
    columns = JoinInputs((3, 3, 3), 60_000).columns
    for before, after in (("c1", "c2"), ("d1", "d2")):
        high = []
        for name in (before, after):
            often = np.bincount(columns[name])[columns[name]]
            high.append(often > 3)
        shares = [float(np.mean(high[1][high[0] == half])) for half in (False, True)]
        assert shares == pytest.approx([0.5, 0.5], abs=0.01)


def test_productive_partitions_have_more_tuples_if_all_have_as_many_values() -> None:
    columns = JoinInputs((3, 3, 3), 60_000, equal=VALUES).columns
    for name in ("a1", "d1", "e1"):
        partitions = homes(columns[name])
        tuples = np.sort(np.bincount(partitions, minlength=PARTITIONS))
        assert tuples[:150] == pytest.approx(200 * LOW, abs=1)
        assert tuples[150:] == pytest.approx(200 * HIGH, abs=1)
        values = [len(np.unique(columns[name][partitions == p])) for p in range(PARTITIONS)]
        assert np.array(values) == pytest.approx(67, abs=8)


@pytest.mark.parametrize("spread", [1, 2, 8, PARTITIONS])
def test_rows_of_a_partition_go_to_so_many_of_the_next_join(spread: int) -> None:
    columns = JoinInputs((3, 3, 3), 60_000, spread=spread).columns
    for before, after in (("c1", "c2"), ("d1", "d2")):
        ways = np.unique(PARTITIONS * homes(columns[before]) + homes(columns[after]))
        each = np.bincount(ways // PARTITIONS, minlength=PARTITIONS)
        # of 200 rows each
        assert (each > 100).all() if spread == PARTITIONS else (each <= spread).all()
        assert spread == PARTITIONS or each.mean() > 0.95 * spread


@pytest.mark.parametrize("ratios", SETTINGS)
def test_oracle_the_exact_number_of_results_is_that_of_duckdb(ratios: tuple[int, ...]) -> None:
    inputs = JoinInputs(ratios, 3_000, seed=4)
    (batch,) = inputs.batches(1)
    with duckdb.connect() as connection:
        for name, rows in batch.items():
            connection.register(name, pa.Table.from_batches([rows]))
        found = connection.execute(
            "SELECT count(*) FROM a, b, c, d, e WHERE a1 = b1 AND b1 = c1 AND c2 = d1 AND d2 = e1"
        ).fetchone()
    assert found == (inputs.results,)
    assert inputs.results > 1_000


def test_streams_are_a_function_of_their_seed() -> None:
    same = [JoinInputs((3, 1, 1), 1_000, seed).columns["c2"].tolist() for seed in (5, 5, 6)]
    assert same[0] == same[1]
    assert same[0] != same[2]


def test_batches_are_the_streams_cut_in_order() -> None:
    inputs = JoinInputs((1, 3, 3), 1_000)
    batches = list(inputs.batches(7))
    for stream in STREAMS:
        for name in (f"{stream}1", f"{stream}2"):
            whole = np.concatenate([batch[stream].column(name).to_numpy() for batch in batches])
            assert whole.tolist() == inputs.columns[name].tolist()
