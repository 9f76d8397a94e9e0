"""What state adds to the workers of Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.adaptation.operators_of_state import OPERATORS
from bench.safety.budget import judge_workers


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("kind", OPERATORS)
def test_bounded_workers_take_the_budget_and_a_constant(kind: str, tmp_path: Path) -> None:
    asked = {"name": kind, "budget": 8 << 20, "events": 100_000, "batches": 12, "limit": 60.0}
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.safety.process_memory",
            json.dumps({"kind": asked, "folder": str(tmp_path)}),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    (bar,) = judge_workers({kind: json.loads(run.stdout.splitlines()[-1])})
    assert bar.holds
