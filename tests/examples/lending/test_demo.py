from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from examples.lending.demo import changes, demo
from icestream.core.errors import DefinitionError


@pytest.mark.slow
@pytest.mark.spark
def test_oracle_the_demo_reports_what_duckdb_computes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every row of four results, while tasks come and go."""
    output, home = io.StringIO(), tmp_path / "demo"
    assert demo(events=20_000, keep=home, console=Console(file=output, width=140)) == 0
    text = output.getvalue()
    assert text.count("the same as DuckDB's") == 4
    assert "asked for 4 tasks" in text
    assert "4 tasks, " in text
    assert "fused interest partials + interest by area" in text
    assert "split interest partials | interest by area" in text
    assert "component 1, partitioned by area" in capsys.readouterr().out
    assert (home / "job.svg").read_text().startswith("<svg")


def test_what_happens_between_two_reports_is_reported() -> None:
    apart = {"fused": [["a"], ["b"], ["c"]], "parallelism": 2, "movedShards": 0}
    two = {"fused": [["a", "b"], ["c"]], "parallelism": 2, "movedShards": 1}
    three = {"fused": [["a", "b", "c"]], "parallelism": 4, "movedShards": 2}
    assert changes({}, apart) == []
    assert changes(apart, two) == ["fused a + b", "rebalanced, 1 shards moved"]
    assert changes(two, three) == ["fused a + b + c", "4 tasks, 2 shards moved"]
    assert changes(three, apart) == ["split a | b | c"]


def test_arguments_that_make_no_demo_are_refused() -> None:
    with pytest.raises(DefinitionError, match="at least 1 loan"):
        demo(events=0)
    with pytest.raises(DefinitionError, match="cannot read 'much' as a size"):
        demo(memory="much")
