from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.cold import cold_optimisations as optimisations
from bench.cold.cold_state import (
    CLASSIFIERS,
    KINDS,
    ROWS,
    classified,
    in_part_of_memory,
    judge,
    plot,
)
from bench.cold.cold_zipf import TICK, Accesses, Case, Matches, in_turns, totals
from bench.cold.cold_zipf_on_spark import wrong

#: bytes that hold a part of the groups below
LITTLE = 1 << 20
TINY = {
    "fixed": Case("fixed", 60_000, 8_000, 20_000),
    "profiles": Case("profiles", 60_000, 8_000, 20_000),
    "growing": Case("growing", 60_000, 4_000, 20_000),
}


def test_groups_follow_zipfs_law() -> None:
    accesses = Accesses(events=100_000, groups=100, batch=100_000)
    _, key, _, _ = accesses.columns(0)
    share = np.sort(np.bincount(key, minlength=100))[::-1] / len(key)
    wanted = 1 / np.arange(1, 101) / (1 / np.arange(1, 101)).sum()
    assert share == pytest.approx(wanted, abs=0.01)


def test_drift_moves_popularity_on() -> None:
    still, moving = (
        Accesses(events=200_000, groups=1_000, batch=100_000, drift=drift) for drift in (0.0, 0.5)
    )

    def favourite(accesses: Accesses, batch: int) -> int:
        return int(np.bincount(accesses.columns(batch)[1][-10_000:]).argmax())

    assert favourite(still, 0) == favourite(still, 1)
    assert favourite(moving, 0) != favourite(moving, 1)


def test_what_requests_find_is_counted_by_definition() -> None:
    accesses = Accesses(events=3_000, groups=20, batch=1_000, asking=10)
    columns = [accesses.columns(number) for number in range(3)]
    key, value, asks = (np.concatenate([each[n] for each in columns]) for n in (1, 2, 3))
    found = np.zeros(3_000, dtype=np.int64)
    for place in np.flatnonzero(asks):
        earlier = slice(0, place)
        match = (key[earlier] == key[place]) & (value[earlier] == value[place])
        found[place] = (match & ~asks[earlier]).sum()
    assert found.sum() > 0
    assert (Matches.of(accesses).count == found).all()


@pytest.mark.parametrize("kind", TINY)
def test_oracle_answers_are_exact_in_any_memory(kind: str, tmp_path: Path) -> None:
    case = TINY[kind]
    turns = in_turns([case, replace(case, budget=LITTLE)], str(tmp_path))
    assert turns.wrong == [0, 0]
    enough, little = turns.runs
    assert enough.cold["left"] == 0
    assert little.cold["left"] > 0
    assert little.peak <= LITTLE
    assert enough.events == little.events == [20_000] * 3


def test_a_run_in_part_of_memory_is_compared_with_one_in_all(tmp_path: Path) -> None:
    case = Case("profiles", 90_000, 30_000, 15_000)
    figures = in_part_of_memory(case, str(tmp_path))
    assert figures["wrong"] == 0
    assert figures["budget_bytes"] == int(0.2 * figures["full_state_bytes"])
    assert figures["limited"]["misses"] > figures["unlimited"]["misses"] == 0
    assert figures["limited"]["peak_bytes"] <= figures["budget_bytes"]


@pytest.mark.slow
def test_classifiers_see_the_same_events(tmp_path: Path) -> None:
    figures = classified(Case("profiles", 90_000, 30_000, 15_000, drift=0.5), str(tmp_path))
    assert list(figures) == list(CLASSIFIERS)
    assert all(each["wrong"] == 0 and each["misses"] > 0 for each in figures.values())


def test_what_is_wrong_on_spark_is_counted() -> None:
    accesses = Accesses(events=5_000, groups=50, batch=5_000)
    n, total = totals(accesses, "fixed")
    last = pa.array(np.full(50, accesses.events * TICK)).cast(pa.timestamp("us", "UTC"))
    lifetime = pa.StructArray.from_arrays([last, last], names=["start", "end"])
    rows = pa.table({"lifetime": lifetime, "key": np.arange(50), "n": n, "total": total})
    assert wrong(rows, "fixed", accesses) == 0
    assert wrong(rows.slice(1), "fixed", accesses) == 1


def test_matches_are_compared_row_by_row() -> None:
    accesses = Accesses(events=5_000, groups=50, batch=5_000, asking=2)
    matches = Matches.of(accesses)
    place = np.repeat(np.arange(5_000), matches.count)
    start = pa.array(place * TICK).cast(pa.timestamp("us", "UTC"))
    lifetime = pa.StructArray.from_arrays([start, start], names=["start", "end"])
    columns = {"key": matches.key[place], "value": matches.value[place]}
    columns |= {"wanted": matches.value[place], "change": np.ones_like(place)}
    rows = pa.table({"lifetime": lifetime, **columns})
    assert wrong(rows, "growing", accesses) == 0
    assert wrong(rows.slice(1), "growing", accesses) == 1
    columns["key"][0] += 1
    # the row is wrong, and its request lacks one
    assert wrong(pa.table({"lifetime": lifetime, **columns}), "growing", accesses) == 2


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scale = optimisations.Mixed(2_000, 300, 40_000, 10_000, 2_000)
    return optimisations.clean_groups(scale, tmp_path_factory.mktemp("clean"))


def test_oracle_clean_groups_change_no_answer(clean: dict[str, Any]) -> None:
    assert clean["clean groups"]["wrong_answers"] == 0
    free, again = clean["clean is free"], clean["clean is written"]
    assert 0 < free["bytes_written"] < again["bytes_written"]
    assert again["groups_written"] == again["groups_left"]


@pytest.fixture(scope="module")
def deltas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scale = optimisations.Filled(500, 20_000, 64 << 20)
    return optimisations.deltas(scale, tmp_path_factory.mktemp("deltas"))


@pytest.mark.parametrize("durability", ["evict", "log"])
def test_oracle_deltas_change_no_row(deltas: dict[str, Any], durability: str) -> None:
    some, whole = (deltas[f"{durability}, {how}"] for how in ("deltas", "whole groups"))
    assert some["wrong_rows"] == whole["wrong_rows"] == 0
    # nothing is new, nothing is written
    assert some["bytes_written"][0] == whole["bytes_written"][0] == 0
    assert 10 * some["bytes_written"][-1] < whole["bytes_written"][-1]


@pytest.fixture(scope="module")
def expiry(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scale = optimisations.Passing(300, 3_000, 16, 4, 64 << 20)
    return optimisations.expiry(scale, tmp_path_factory.mktemp("expiry"))


def test_oracle_expiry_and_cleaning_keep_the_same_rows(expiry: dict[str, Any]) -> None:
    assert expiry["expiry and cleaning"]["wrong_ways"] == 0
    assert expiry["expiry and cleaning"]["log_bytes_ratio"] > 1


def test_a_log_that_expires_stops_growing(expiry: dict[str, Any]) -> None:
    log = expiry["expiry, records of 65536"]["log_over_time"]
    assert max(log[4:]) < 1.1 * min(log[4:])


def test_figures_are_judged_and_drawn(
    clean: dict[str, Any], deltas: dict[str, Any], expiry: dict[str, Any], tmp_path: Path
) -> None:
    figures: dict[str, Any] = {**clean, **deltas, **expiry}
    for row in ROWS:
        figures[row] = {
            "ratio": 0.95,
            "wrong": 0,
            "full_state_bytes": 5_000,
            "budget_bytes": 1_000,
        }
    for kind in KINDS:
        figures[f"{kind}, on Spark"] = {"ratio": 0.95, "wrong": 0}
    for name in CLASSIFIERS:
        for drift in ("no drift", "drift"):
            figures[f"{name}, {drift}"] = {"misses": 10, "wrong": 0}
    bars = {bar.name: bar for bar in judge(figures)}
    assert bars["fixed, in 20 %"].holds
    assert bars["wrong answers"].holds
    figures["growing"] |= {"ratio": 0.5, "wrong": 1}
    bars = {bar.name: bar for bar in judge(figures)}
    assert not bars["growing, in 20 %"].holds
    assert not bars["wrong answers"].holds
    plot(figures, tmp_path / "figures" / "cold-state.png")
    assert (tmp_path / "figures" / "cold-state.png").stat().st_size > 0
