"""The example in the README runs, and prints what the README says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

README = Path(__file__).parents[1] / "README.md"
ORDERS = [
    ("2026-03-01T12:00:03Z", "Oslo", 20.0),
    ("2026-03-01T12:00:07Z", "Lisbon", 12.5),
    ("2026-03-01T12:00:15Z", "Lisbon", 7.75),
    ("2026-03-02T11:59:58Z", "Oslo", 5.0),
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.spark
def test_the_readmes_example_prints_what_the_readme_shows(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "events").mkdir()
    lines = [json.dumps({"at": at, "shop": shop, "price": price}) for at, shop, price in ORDERS]
    (tmp_path / "events" / "1.json").write_text("\n".join(lines))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    code = blocks("python")[0]
    for folder in ("events", "out", "checkpoint"):
        code = code.replace(f'"{folder}"', repr(str(tmp_path / folder)))
    exec(compile(code, str(README), "exec"), {})
    assert capsys.readouterr().out.strip() == blocks("text")[0].strip()
