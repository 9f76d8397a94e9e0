from __future__ import annotations

from typing import Any

from bench.windows.sinks import QUERIES, SINKS, judge, summarise


def found(**rates: float) -> list[dict[str, Any]]:
    given = dict.fromkeys(SINKS, 100.0) | rates
    return [
        {"query": query, "sink": sink, "eps": rate, "rows": 7, "check": 1.5}
        for query in QUERIES
        for sink, rate in given.items()
    ]


def test_rates_are_relative_to_noop_and_to_parquet() -> None:
    bars = judge(summarise([*found(parquet=80, delta=70), *found(parquet=90)]))
    by_name = {bar.name: bar for bar in bars}
    assert by_name["vwap: Parquet to noop"].measured == 0.9
    assert all(bar.holds for bar in bars)
    assert not all(bar.holds for bar in judge(summarise(found(parquet=80))))


def test_tables_of_all_sinks_are_compared() -> None:
    runs = found()
    runs[-1]["rows"] = 8
    bars = {bar.name: bar for bar in judge(summarise(runs))}
    assert not bars["call centre: tables that differ"].holds
    assert bars["vwap: tables that differ"].holds


def test_a_sink_that_did_not_run_holds_no_bar() -> None:
    runs = [each for each in found() if each["sink"] != "iceberg"]
    assert not [bar for bar in judge(summarise(runs)) if "Iceberg" in bar.name and bar.holds]


def test_a_base_is_compared_if_it_ran() -> None:
    base = [
        {**each, "sink": "base parquet", "eps": 60.0}
        for each in found()
        if each["sink"] == "parquet"
    ]
    bars = {bar.name: bar for bar in judge(summarise([*found(), *base]))}
    assert not bars["vwap: to the base"].holds
    assert not [bar for bar in judge(summarise(found())) if "base" in bar.name]
