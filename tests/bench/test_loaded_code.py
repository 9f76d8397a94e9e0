from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bench
from bench.harness import Silent, run
from bench.loaded_code import LoadedCode, watched
from bench.registry import Bench, Measurement, ProgressLog, Size

SOURCE = Path(bench.__file__).parents[1] / "src"
PROGRAM = """
import os
import icestream.core.units
if child := os.fork():
    os.waitpid(child, 0)
else:
    import icestream.core.errors
    os._exit(0)
"""


def test_modules_of_child_processes_are_noted() -> None:
    def measure() -> int:
        return subprocess.run([sys.executable, "-c", PROGRAM], check=True).returncode

    code, loaded = watched("bench.loaded_code", measure, SOURCE)
    assert code == 0
    assert {"core.units", "core.errors"} <= set(loaded.modules.split())
    assert "runtime.driver" not in loaded.modules.split()


def test_a_report_names_the_code_that_ran() -> None:
    def measure(_size: Size, _progress: ProgressLog) -> Measurement:
        subprocess.run([sys.executable, "-c", "import icestream.core.units"], check=True)
        return Measurement({})

    measure.__module__ = "bench.rows"
    code = run(Bench("keys", "keys cost nothing", measure), Size.SMALL, Silent()).code
    assert code is not None
    assert "core.units" in code.modules.split()
    assert code.is_code_of(SOURCE)


def test_a_digest_follows_statements_and_not_words(tmp_path: Path) -> None:
    module = tmp_path / "icestream" / "one.py"
    module.parent.mkdir()
    module.write_text('"""One."""\n\ndef one():\n    """Return 1."""\n    return 1\n')
    code = LoadedCode.of(["one", "gone"], tmp_path)
    module.write_text('"""Uno."""\ndef one():\n    """Give 1."""\n\n    return (1)  # uno\n')
    assert code.is_code_of(tmp_path)
    module.write_text("def one():\n    return 2\n")
    assert not code.is_code_of(tmp_path)
    module.unlink()
    assert not code.is_code_of(tmp_path)
