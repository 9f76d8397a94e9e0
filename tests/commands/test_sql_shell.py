"""The shell of `icestream sql`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from icestream.commands.sql_shell import Shell, completions, lines_of, watched_rows


def test_a_statement_ends_with_a_semicolon_and_a_command_with_its_line() -> None:
    typed = iter(["", "SELECT 1", "FROM a;", "\\d", "SELECT 2"])
    prompts = []

    def read(prompt: str) -> str:
        prompts.append(prompt)
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    assert list(lines_of(read)) == ["SELECT 1\nFROM a;", "\\d"]
    assert prompts == ["ice> ", "ice> ", "... ", "ice> ", "ice> ", "... "]


def test_words_are_completed_in_any_case() -> None:
    assert completions("se", ["SELECT", "seller", "FROM"]) == ["SELECT", "seller"]
    assert completions("", ["SELECT"]) == []


def test_files_can_be_watched(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "a.parquet")
    assert watched_rows(tmp_path) == (["k"], [[1], [2]])


@pytest.fixture
def shell(spark: SparkSession, tmp_path: Path) -> tuple[Shell, list[str]]:
    times = pa.array([1_000_000 * at for at in (1, 2, 3)]).cast(pa.timestamp("us", "UTC"))
    (tmp_path / "bids").mkdir()
    pq.write_table(
        pa.table({"at": times, "item": ["a", "b", "a"], "price": [3, 4, 9]}),
        tmp_path / "bids" / "0.parquet",
    )
    printed: list[str] = []
    return Shell(spark, "64 MB", printed.append), printed


@pytest.mark.spark
def test_statements_print_the_table_they_compute(
    shell: tuple[Shell, list[str]], tmp_path: Path
) -> None:
    here, printed = shell
    assert here.run(f"\\stream bid {tmp_path}/bids at")
    assert printed == ["stream bid: at, item, price"]
    printed.clear()
    here.run("CREATE VIEW best AS SELECT item, max(price) AS top FROM bid GROUP BY item;")
    here.run("SELECT item, top FROM best;")
    assert printed == ["item  top", "a     9", "b     4", "(2 rows)"]
    printed.clear()
    here.run("SELECT itme FROM bid;")
    assert "did you mean 'item'?" in printed[0]
    assert "^" in printed[0]
    printed.clear()
    here.run("SELECT price / (price - price) AS x FROM bid;")
    assert "DIVIDE_BY_ZERO" in printed[0]
    assert len(printed[0].splitlines()) == len(printed) == 1
    printed.clear()
    here.run("EXPLAIN SELECT item, count(*) AS n FROM bid GROUP BY item;")
    assert "nothing bounds it" in printed[0]
    assert "item" in here.words()
    assert not here.run("\\q")


@pytest.mark.spark
@pytest.mark.parametrize(
    "text", ["\\stream bid", "\\table t", "\\watch nothing", "\\watch EXPLAIN 1"]
)
def test_mistakes_do_not_end_the_shell(text: str, shell: tuple[Shell, list[str]]) -> None:
    here, printed = shell
    assert here.run(text)
    assert len(printed) == 1
