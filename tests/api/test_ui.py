from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import icestream as ice
from tests.fixtures.parquet_feed import Feed

pytestmark = pytest.mark.spark


def events(*seconds: float) -> pa.Table:
    instants = [datetime.fromtimestamp(second, UTC) for second in seconds]
    return pa.table({"at": pa.array(instants, pa.timestamp("us", "UTC"))})


@pytest.fixture
def counted(spark: SparkSession, tmp_path: Path) -> ice.StreamWriter:
    feed = Feed(spark, str(tmp_path / "in"), events(0, 1.5, 3.9), events(2.5, 4, 7))
    result = ice.stream(feed.stream(), time="at", slack="1 second").window("2 seconds").count()
    writer = result.writeStream.queryName("counts").foreachBatch(lambda rows, version: None)
    writer = writer.option("checkpointLocation", str(tmp_path / "chk")).memory("64 MB")
    return writer.trigger(availableNow=True)


def asked(query: ice.Query, path: str) -> Any:
    with urlopen(f"{query.uiWebUrl}{path}", timeout=10) as answer:
        return json.load(answer)


def test_a_query_shows_itself_on_a_page_also_after_its_end(
    counted: ice.StreamWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = counted.option("ui", True).start()
    query.awaitTermination()
    assert query.uiWebUrl is not None
    assert query.uiWebUrl in capsys.readouterr().err
    [mine] = [q for q in asked(query, "api/queries") if q["checkpoint"] == str(tmp_path / "chk")]
    assert (mine["name"], mine["state"], mine["versions"]) == ("counts", "ended", 2)
    shown = asked(query, f"api/query/{mine['id']}")
    assert [record["numInputRows"] for record in shown["records"]] == [3, 3]
    own = shown["records"][-1]["icestream"]
    assert own["latestEventTime"].startswith("1970-01-01T00:00:07")
    assert sum(own["shards"]["memoryBytes"]) == own["stateMemoryBytes"]
    assert (
        sum(each["logBytes"] for each in own["operators"]) + own["eventsBytes"] == own["logBytes"]
    )
    assert [box["id"] for box in shown["plan"]["boxes"]] == ["source 0", "component 0", "result 0"]


def test_a_query_that_fails_says_so_in_its_history(
    counted: ice.StreamWriter, tmp_path: Path
) -> None:
    def refuse(rows: DataFrame, version: int) -> None:
        raise ValueError("the table is closed")  # noqa: EM101, TRY003

    query = counted.foreachBatch(refuse).start()
    with pytest.raises(ValueError, match="closed"):
        query.awaitTermination()
    assert query.uiWebUrl is None
    lines = (tmp_path / "chk" / "history" / "progress.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert last["kind"] == "end"
    assert last["error"] == "ValueError: the table is closed"
