from __future__ import annotations

import io
from pathlib import Path

import duckdb
import pytest
from rich.console import Console

from icestream.core.errors import DefinitionError
from icestream.demo.call_centre.demo import demo
from icestream.demo.call_centre.kpis import ALL, GROUPINGS, WHOLE, group_name
from icestream.demo.results import NewestWindow

DIRECT = """
    SELECT serviceId, count(*), avg(waitTime), max(waitTime), avg(busyTime), sum(busyTime),
           avg(wrapUpTime)
    FROM read_parquet('{events}')
    WHERE epoch_us(timestamp) >= {start} AND epoch_us(timestamp) < {end}
    GROUP BY serviceId
"""


@pytest.mark.spark
def test_oracle_the_demo_ends_with_the_figures_of_the_last_window(tmp_path: Path) -> None:
    output = io.StringIO()
    home = tmp_path / "demo"
    code = demo(
        events=130_000,
        window="1 hour",
        slide="10 seconds",
        keep=home,
        kill=True,
        spark_window=True,
        console=Console(file=output, width=140),
    )
    assert code == 0

    newest = NewestWindow(home / "results", "serviceId")
    newest.refresh()
    direct = duckdb.execute(
        DIRECT.format(events=home / "events" / "*.parquet", start=newest.start, end=newest.end)
    ).fetchall()
    columns = ("serviceId", "calls", "avg_wait", "max_wait", "avg_busy", "sum_busy", "avg_wrap_up")
    shown = sorted(tuple(row[column] for column in columns) for row in newest.rows)
    assert len(shown) == len(direct) == 24
    for ours, theirs in zip(shown, sorted(direct), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)

    text = output.getvalue()
    assert "130,000" in text
    for service, calls, *_ in direct:
        line = next(line for line in text.splitlines() if group_name("serviceId", service) in line)
        assert f"{calls:,}" in line
    assert "The 1 hour up to 2026-01-01 01:0" in text
    assert "Python workers killed: " in text
    assert "Spark's window()" in text


@pytest.mark.spark
def test_oracle_all_figures_of_the_last_window_are_those_of_the_events(tmp_path: Path) -> None:
    output, home = io.StringIO(), tmp_path / "demo"
    console = Console(file=output, width=160)
    demo(events=13_000, window="1 hour", slide="20 minutes", by=ALL, keep=home, console=console)
    newest = NewestWindow(home / "results", *GROUPINGS)
    newest.refresh()
    columns = ", ".join(f"{e.function}({e.field})" for e in WHOLE)
    for key in GROUPINGS:
        direct = duckdb.execute(
            f"SELECT {key}, {columns} FROM read_parquet('{home}/events/*.parquet') WHERE "
            f"epoch_us(timestamp) >= {newest.start} AND epoch_us(timestamp) < {newest.end} "
            "GROUP BY 1"
        ).fetchall()
        exact = {group: figures for group, *figures in direct}
        rows = [row for row in newest.rows if row[key] is not None and row["calls"]]
        assert 0 < len(rows) <= len(exact)
        for row in rows:
            found = [row[figure.column] for figure in WHOLE]
            assert found == pytest.approx(exact[row[key]], rel=1e-12)
    assert "availableTime, sum h" in output.getvalue()


def test_a_folder_with_something_in_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(DefinitionError, match="is not empty"):
        demo(keep=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_arguments_that_make_no_demo_are_refused() -> None:
    with pytest.raises(DefinitionError, match="at least 1 event"):
        demo(events=0)
    with pytest.raises(DefinitionError, match="fast-forward must be above 0"):
        demo(fast_forward=0)
    with pytest.raises(DefinitionError, match="choose one of instance, serviceId"):
        demo(by="colour")
    with pytest.raises(DefinitionError, match="rate must be at least 1"):
        demo(rate=0)
    with pytest.raises(DefinitionError, match="cannot read 'much' as a size"):
        demo(memory="much")
