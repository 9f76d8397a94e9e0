from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from icestream import cli
from icestream.commands.plan import (
    PastRun,
    forecast_report,
    past_runs,
    past_text,
    plan_text,
    planned,
)
from icestream.core.errors import DefinitionError
from icestream.plan.forecast import StreamLoad, forecast
from icestream.runtime.version.history import QueryHistory
from tests.fixtures.dataflow_plans import self_join

COLUMNS = "at timestamp, shop string, price long"
STATEMENT = "SELECT shop, COUNT(*) AS n FROM orders [RANGE 24 HOURS SLIDE 10 SECONDS] GROUP BY shop"


def progress(store: str, estimated: int, log: int) -> dict[str, Any]:
    reported = {
        "store": store,
        "estimatedBytes": {"panes": estimated, "tuples": 9},
        "logBytes": log,
    }
    return {"icestream": reported}


def test_past_runs_report_how_far_off_the_estimate_was(tmp_path: Path) -> None:
    history = QueryHistory(str(tmp_path), {})
    for logs in ([50, 150], [], [200]):
        history.start()
        for log in logs:
            history.progress(progress("panes", 100, log))
        history.end(None)
    history.start()
    history.progress({"icestream": {"store": "panes", "estimatedBytes": None, "logBytes": 1}})
    runs = past_runs(str(tmp_path))
    assert [(each.versions, each.ratio) for each in runs] == [(2, 1.5), (1, 2.0)]
    assert "1.50" in past_text(runs)


def test_a_checkpoint_without_an_estimate_says_so(tmp_path: Path) -> None:
    QueryHistory(str(tmp_path), {}).start()
    assert "no windows on a grid" in past_text(past_runs(str(tmp_path)))
    with pytest.raises(DefinitionError, match="has no history"):
        past_runs(str(tmp_path / "nowhere"))


def test_a_run_without_an_estimate_is_held_against_the_forecast(tmp_path: Path) -> None:
    history = QueryHistory(str(tmp_path), {})
    history.start()
    for second in (0, 10, 20):
        reported = {
            "latestEventTime": f"2026-03-01T12:00:{second:02d}Z",
            "groups": 6,
            "logBytes": 5000,
        }
        history.progress({"numInputRows": 400, "icestream": reported})
    plan = self_join()
    [run] = past_runs(str(tmp_path), plan)
    wanted = sum(each.disk for each in forecast(plan, StreamLoad(rate=40, keys=6)))
    assert (run.versions, run.estimated, run.log) == (3, round(wanted), 5000)
    assert past_runs(str(tmp_path)) == []


def test_an_estimate_of_nothing_is_infinitely_far_off() -> None:
    assert PastRun("", 1, "panes", 0, 5).ratio == float("inf")


def test_the_command_asks_for_something_to_plan() -> None:
    result = CliRunner().invoke(cli.app, ["plan"])
    assert result.exit_code == 2
    assert "give a statement" in result.stderr


def test_the_command_prints_past_runs_as_json(tmp_path: Path) -> None:
    history = QueryHistory(str(tmp_path), {})
    history.start()
    history.progress(progress("panes", 100, 120))
    result = CliRunner().invoke(cli.app, ["plan", "--checkpoint", str(tmp_path), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["pastRuns"][0]["ratio"] == 1.2


def test_a_statement_needs_its_columns_and_its_time() -> None:
    with pytest.raises(DefinitionError, match="the columns of the stream"):
        planned(STATEMENT, None, None)


def test_a_file_without_a_statement_is_named(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"statement in nowhere\.sql cannot be read: No such"):
        planned("nowhere.sql", COLUMNS, None)
    (tmp_path / "bytes.sql").write_bytes(b"\xff\xfe")
    with pytest.raises(DefinitionError, match=r"bytes\.sql cannot be read: it is not UTF-8 text"):
        planned(str(tmp_path / "bytes.sql"), COLUMNS, None)


@pytest.mark.spark
def test_a_statement_is_planned(spark: SparkSession, tmp_path: Path) -> None:
    reported = forecast_report(planned(STATEMENT, COLUMNS, None), StreamLoad(1000, 80_000), "1 MB")
    [operator] = reported["queries"]["statement"]
    assert operator["operator"] == "windows of 1 day"
    assert not operator["fits"]
    assert "fits in 1.0 MB, the rest is read when needed" in plan_text(reported)
    file = tmp_path / "query.sql"
    file.write_text(STATEMENT)
    again = forecast_report(planned(str(file), COLUMNS, "at"), StreamLoad(1000, 80_000), "1 MB")
    assert again == reported
    with pytest.raises(DefinitionError, match="--time"):
        planned(STATEMENT, "shop string", None)


@pytest.mark.spark
def test_a_program_is_planned_and_not_started(spark: SparkSession, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import icestream as ice

spark = ice.local_session()
frame = ice.files(spark, {str(tmp_path)!r}, schema={COLUMNS!r})
orders = ice.stream(frame, time="at")
hourly = orders.window("1 hour").groupBy("shop").count()
newest = orders.latestBy("shop").map(lambda row: row, "shop string, price long")
pairs = orders.events().select("shop").join(
    orders.events().select("shop", "price"), on="shop", within="1 minute"
)
if __name__ == "__main__":
    raise AssertionError
"""
    )
    plans = planned(str(program), None, None)
    assert sorted(plans) == ["hourly", "newest", "pairs"]
    reported = forecast_report(plans, StreamLoad(1000, 100), "64 MB")
    assert all(each["fits"] for parts in reported["queries"].values() for each in parts)
    program.write_text("nothing = 1")
    with pytest.raises(DefinitionError, match="no results to plan"):
        planned(str(program), None, None)
    with pytest.raises(DefinitionError, match="there is no program"):
        planned("nowhere.py", None, None)
