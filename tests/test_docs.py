"""The Python in README and guides runs, and prints what is shown below it.

The blocks of a document run in order and share their names. A `text` block right below one is what
it prints; a block without a language is part of that. `df`, `calls`, `kpis` and `F`, where a guide
takes them as given, are the ones made here. Spark's own queries, shown for comparison, are built
and not started: what they give is the subject of `tests/runtime/test_spark_oracle.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import icestream as ice
from icestream.api import query_settings
from tests.fixtures.parquet_feed import Feed

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs" / "guide").glob("*.md"))]
#: what is read first runs with the fast tests, the rest with the slow ones
FIRST_READ = ("README.md", "tutorial.md")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
#: folders that examples name
FOLDER = re.compile(r'"((?:events|out|chk|checkpoint)(?:/\w+)?)"')


@dataclass(frozen=True)
class Example:
    """A block of Python and what is shown below it."""

    code: str
    #: how often a line breaks above it
    above: int
    #: language and text of what it prints
    shown: tuple[str, str] | None

    def run(self, document: Path, folder: Path, names: dict[str, Any]) -> None:
        code = FOLDER.sub(lambda found: repr(str(folder / found[1])), self.code)
        if ".withWatermark(" in code:
            code = code.replace(".start()", "")
        exec(compile("\n" * self.above + code, str(document), "exec"), names)


def examples(document: Path) -> Iterator[Example]:
    text = document.read_text()
    found = list(BLOCK.finditer(text))
    for each, below in zip(found, [*found[1:], None], strict=True):
        if each[1] == "python":
            adjacent = below is not None and not text[each.end() : below.start()].strip()
            shown = (below[1], below[2]) if adjacent and below is not None else None
            shown = shown if shown is not None and shown[0] in ("", "text") else None
            yield Example(each[2], text.count("\n", 0, each.start()) + 1, shown)


@pytest.fixture
def given(spark: SparkSession, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the guides take as given; queries that are still running end with the test."""
    moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
    numbers = {"busyTime": [30], "price": [2.5], "volume": [100]}
    texts = {name: ["a"] for name in ("serviceId", "symbol", "userId", "agent")}
    event = {"timestamp": pa.array([moment], pa.timestamp("us", "UTC")), **numbers, **texts}
    df = Feed(spark, str(tmp_path / "given"), pa.table(event)).stream()
    calls = ice.stream(df, time="timestamp", slack="5 seconds")
    kpis = calls.window("24 hours", slide="10 seconds").groupBy("serviceId").count()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield {"df": df, "calls": calls, "kpis": kpis, "F": sf, "spark": spark}
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()


@pytest.mark.spark
@pytest.mark.parametrize(
    "document",
    [
        pytest.param(each, marks=() if each.name in FIRST_READ else pytest.mark.slow, id=each.name)
        for each in DOCUMENTS
    ],
)
def test_examples_run_and_print_what_is_shown(
    document: Path,
    given: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if document == README:
        (tmp_path / "events").mkdir()
        [orders] = [each[2] for each in BLOCK.finditer(document.read_text()) if each[1] == "json"]
        (tmp_path / "events" / "orders.json").write_text(orders)
    for example in examples(document):
        example.run(document, tmp_path, given)
        printed = capsys.readouterr().out.strip()
        if example.shown is not None:
            language, shown = example.shown
            assert shown.strip() in printed
            assert not language or shown.strip() == printed


@pytest.mark.parametrize(
    "document", [README, *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda each: each.name
)
def test_links_lead_somewhere(document: Path) -> None:
    for link in LINK.findall(BLOCK.sub("", document.read_text())):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        if heading:
            assert heading in anchors(target), link


def anchors(document: Path) -> set[str]:
    """Return the names that headings have as targets of links."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_option_of_a_query_is_on_the_reference_page() -> None:
    page = (ROOT / "docs" / "reference" / "running.md").read_text()
    missing = [each for each in query_settings.OWN_OPTIONS if f"| `{each}` |" not in page]
    assert missing == []
