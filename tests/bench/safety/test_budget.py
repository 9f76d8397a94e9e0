"""What state adds to the workers of Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.adaptation.operators_of_state import OPERATORS
from bench.registry import Size
from bench.safety.budget import KINDS, judge_workers


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("kind", OPERATORS)
def test_bounded_workers_take_the_budget_and_a_constant(kind: str, tmp_path: Path) -> None:
    asked = next(asdict(each) for each in KINDS[Size.SMALL] if each.name == kind)
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
    bars = judge_workers({kind: json.loads(run.stdout.splitlines()[-1])})
    assert [bar.name for bar in bars if not bar.holds] == []


def test_a_kind_of_state_that_failed_is_a_missed_bar() -> None:
    bars = judge_workers({"sessions": {"failure": "no memory"}})
    assert [bar.holds for bar in bars] == [False, False]
