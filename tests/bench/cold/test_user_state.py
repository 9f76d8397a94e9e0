from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.cold import rocksdb_state
from bench.cold.icestream_user_state import OUTPUT, ColumnTotals, GroupTotals
from bench.cold.keyed_rows import KeyedStream
from bench.cold.user_state import (
    LARGE,
    PER_GROUP,
    SCALES,
    SPARK,
    STORE_MEMORY,
    VECTORISED,
    judge,
    plot,
    prefix,
    summarise,
    wrong_keys,
)
from bench.registry import Size
from icestream.operators.lifetimes.changes import changes_of, payload_of
from icestream.operators.process.operator import Processor, UserDefined
from icestream.state.keys import KeyCodec
from tests.oracles.plain_groups import PlainGroups

RATES = {SPARK: 100.0, VECTORISED: 20_000.0, PER_GROUP: 1_500.0, LARGE: 90_000.0}


def stores(icestream: float, rocksdb: float, in_order: float, wrong: int = 0) -> dict[str, object]:
    rates = {"icestream": icestream, "rocksdb": rocksdb, "rocksdb sorted": in_order}
    return {
        f"{memory}|{name}": {"eps": eps, "inside_share": 0.9, "wrong": wrong}
        for memory in STORE_MEMORY
        for name, eps in rates.items()
    }


def agreeing() -> dict[str, int]:
    return dict.fromkeys(RATES, 0)


def test_ratios_are_to_spark_and_to_the_faster_rocksdb() -> None:
    figures = summarise(RATES, stores(900.0, 100.0, 300.0), agreeing())
    assert figures[f"ratio, {VECTORISED}"] == 200
    assert figures[f"ratio, {PER_GROUP}"] == 15
    assert all(
        figures[f"stores, {memory}"]["ratio to the faster RocksDB"] == 3 for memory in STORE_MEMORY
    )
    assert all(bar.holds for bar in judge(figures))


def test_a_slower_order_of_rocksdb_does_not_help() -> None:
    figures = summarise(RATES, stores(300.0, 100.0, 200.0), agreeing())
    held = {bar.name: bar.holds for bar in judge(figures)}
    assert not any(held[f"store / faster RocksDB, {memory}"] for memory in STORE_MEMORY)


def test_without_peers_no_ratio_holds() -> None:
    figures = summarise({VECTORISED: 1.0}, {}, {VECTORISED: 0})
    assert not any(bar.holds for bar in judge(figures))


def test_a_wrong_key_fails_the_agreement() -> None:
    figures = summarise(RATES, stores(900.0, 100.0, 300.0, wrong=1), agreeing())
    assert not judge(figures)[-1].holds


def test_all_systems_of_a_scale_but_large_batches_get_the_same_batches() -> None:
    for size in Size:
        same = {case.files_per_trigger for case in SCALES[size].cases if case.name != LARGE}
        assert len(same) == 1


def test_the_last_totals_of_each_key_are_compared(tmp_path: Path) -> None:
    rows = {"key": [1, 2, 1, 2], "n": [1, 1, 3, 2], "total": [0.5, 1.0, 2.0, 4.0]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")
    keys, n, total = np.array([1, 2]), np.array([3, 2]), np.array([2.0, 4.0])
    assert wrong_keys(tmp_path, keys, n, total) == 0
    assert wrong_keys(tmp_path, keys, n, np.array([2.0, 4.125])) == 1
    assert wrong_keys(tmp_path, np.array([1, 2, 3]), np.array([3, 2, 1]), np.ones(3)) == 3


def test_a_prefix_has_the_first_files_with_their_times(tmp_path: Path) -> None:
    folder = KeyedStream("s", 1, 10).write_files(tmp_path, 5, 10)
    taken = prefix(folder, 2, tmp_path / "taken")
    assert [path.name for path in sorted(taken.iterdir())] == ["000000.parquet", "000001.parquet"]
    assert (taken / "000001.parquet").stat().st_mtime == (folder / "000001.parquet").stat().st_mtime


def test_all_stores_hold_the_same_totals(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    plan = {
        "name": "x", "seed": 12_345, "keys": 500, "rows": 800, "batches": 4, "skip": 1,
        "memory": 8 << 20,
    }  # fmt: skip
    found = rocksdb_state.measure(plan, tmp_path)
    assert [result["name"] for result in found] == [f"x|{name}" for name in rocksdb_state.STORES]
    assert [result["wrong"] for result in found] == [0, 0, 0]


@pytest.mark.parametrize("processor", [ColumnTotals(), GroupTotals()])
def test_oracle_both_forms_compute_the_totals(processor: Processor) -> None:
    stream = KeyedStream("s", 12_345, 60)
    payload = pa.schema([("key", pa.int64()), ("value", pa.float64())])
    operator = UserDefined(processor, "key long", payload, OUTPUT)
    groups = PlainGroups(operator.synopses)
    found: dict[int, tuple[int, float]] = {}
    for first in (0, 200, 400):
        times, keys, values = stream.columns(first, 200)
        events = pa.record_batch([pa.array(keys), pa.array(values)], schema=payload)
        id_high, id_low = KeyCodec(pa.schema([payload.field("key")])).identify(
            events.select(["key"])
        )
        groups.begin(0)
        changes = changes_of(
            events, times, times + 1, np.ones(200, dtype=np.int64), id_high, id_low
        )
        for made in operator.on_changes(0, changes, groups, 0):
            for row in payload_of(made).to_pylist():
                found[row["key"]] = row["n"], row["total"]
    keys, n, total = stream.totals(0, 600)
    pairs = zip(n.tolist(), total.tolist(), strict=True)
    assert found == dict(zip(keys.tolist(), pairs, strict=True))


def test_the_figure_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(summarise(RATES, stores(9e5, 1e5, 3e5), agreeing()), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1_000
