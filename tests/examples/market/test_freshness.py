from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from examples.market.freshness import Dashboard, OptionPrices, demo
from icestream.core.errors import DefinitionError


class _Query:
    def __init__(self, reports: list[dict[str, Any]]) -> None:
        self.recentProgress = reports
        self.isActive = True

    def table(self) -> _Query:
        return self

    def orderBy(self, column: str) -> _Query:  # noqa: N802 - as in PySpark
        assert column == "age"
        return self

    def limit(self, count: int) -> _Query:
        assert count > 0
        return self

    def collect(self) -> list[dict[str, Any]]:
        return [{"symbol": "ICE", "price": 20.0, "option": 1.5, "age": 0.7}]


def _report(version: int) -> dict[str, Any]:
    stale = {"averageMs": 1500.0, "p50Ms": 1000.0, "p99Ms": 4000.0, "maxMs": 5000.0}
    reported = {"served": 70, "waiting": 30, "staleness": stale}
    return {
        "version": version,
        "numInputRows": 900,
        "durationMs": {"triggerExecution": 950},
        "icestream": {"updates": reported},
    }


def test_oracle_the_demo_shows_what_the_query_reports() -> None:
    board = Dashboard()
    assert board.line() == "no batch yet"
    query: Any = _Query([_report(1), _report(2)])
    board.look(query)
    board.look(query)
    assert len(board.batches) == 2
    assert "900 quotes, 70 symbols priced, 30 wait" in board.line()
    assert "1.50 s on average, 4.00 s p99" in board.line()
    console = Console(width=120, record=True)
    console.print(board.table())
    text = console.export_text()
    assert "0.95" in text
    assert all(each in text for each in ("ICE", "20.00", "1.5000", "0.7"))


def test_an_option_is_worth_more_where_the_price_is_higher() -> None:
    rows = pa.record_batch(
        {"ts": pa.array([0, 0]), "symbol": ["A", "B"], "price": pa.array([10.0, 100.0])}
    )
    low, high = OptionPrices(2000)(rows).column("option").to_pylist()
    assert 0 < low < high / 5


def test_arguments_that_make_no_demo_are_refused() -> None:
    with pytest.raises(DefinitionError, match="at least 1 second"):
        demo(seconds=0)
    with pytest.raises(DefinitionError, match="no schedule"):
        demo(schedule="best")
