from __future__ import annotations

from pathlib import Path

from tests.scheduling import next_scope

WITH = "import pytest\n\ndef test_it(spark: SparkSession) -> None: ...\n"
WITHOUT = "def test_it() -> None: ...\n"


def test_tests_with_spark_start_first_on_two_processes(tmp_path: Path) -> None:
    for name, text in {"a": WITHOUT, "b": WITHOUT, "c": WITH, "d": WITH}.items():
        (tmp_path / f"{name}.py").write_text(text)
    waiting = ["a.py", "b.py::TestIt", "c.py", "d.py::TestIt"]
    assert next_scope(waiting, tmp_path, with_spark=True) == "c.py"
    assert next_scope(waiting, tmp_path, with_spark=False) == "a.py"
    assert next_scope(waiting[:2], tmp_path, with_spark=True) == "a.py"
    assert next_scope(waiting[3:], tmp_path, with_spark=False) == "d.py::TestIt"
