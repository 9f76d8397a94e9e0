"""The programs under `examples/` run as they are, and find what is in their events."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
#: what the last line that a program prints tells
FINDS = {
    "shop_windows.py": "60 minutes",
    "click_joins.py": "given_up 1333",
    "sensor_socket.py": "readings 2000 alarms [7]",
    "kafka_orders.py": "orders 4000 shops 5",
    "quote_scores.py": "symbols 200",
    "card_checks.py": "cards to look at [0, 50, 100, 150, 200, 250]",
}
#: what a program needs beyond Icestream
NEEDS = {"kafka_orders.py": "confluent_kafka"}
NOTEBOOK = EXAMPLES / "tour.ipynb"


def run(*arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, *arguments]
    ended = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


def test_every_example_is_told_of_and_tested() -> None:
    programs = {path.name for path in EXAMPLES.glob("[!_]*.py")}
    assert programs == set(FINDS)
    reported = (ROOT / "docs" / "examples.md").read_text()
    assert all(f"`{name}`" in reported for name in [*programs, NOTEBOOK.name])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("program", FINDS)
def test_oracle_an_example_finds_what_its_events_hold(program: str, tmp_path: Path) -> None:
    if program in NEEDS:
        pytest.importorskip(NEEDS[program])
    reported = run(str(EXAMPLES / program), str(tmp_path / "home"), cwd=tmp_path)
    assert reported.strip().splitlines()[-1].endswith(FINDS[program])


@pytest.mark.slow
@pytest.mark.spark
def test_the_cells_of_the_notebook_run_in_order(tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (tmp_path / "cells.py").write_text("\n\n".join(code))
    assert run("cells.py", cwd=tmp_path).strip().splitlines()[-1] == "True"
