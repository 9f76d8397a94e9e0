from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.loaded_code import LoadedCode

TOOLS = Path(__file__).resolve().parents[1] / "tools"


def put_program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def put_java(home: Path, version: str) -> Path:
    put_program(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-01-01' >&2")
    return home


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("version", ["17.0.1", "21", "25.0.3"])
def test_java_of_java_home_is_taken_first(tmp_path: Path, version: str) -> None:
    home = put_java(tmp_path / "jdk", version)
    result = run(TOOLS / "java.sh", JAVA_HOME=str(home))
    assert result.stdout == f"{home}\n"


@pytest.mark.parametrize("version", ["11.0.20", "1.8.0_292"])
def test_java_on_the_path_is_taken_where_java_home_is_too_old(tmp_path: Path, version: str) -> None:
    old = put_java(tmp_path / "old", version)
    new = put_java(tmp_path / "new", "17.0.1")
    path = f"{new / 'bin'}:{os.environ['PATH']}"
    result = run(TOOLS / "java.sh", JAVA_HOME=str(old), PATH=path)
    assert result.stdout == f"{new}\n"


def test_a_missing_python_is_named(tmp_path: Path) -> None:
    result = run(TOOLS / "setup.sh", tmp_path / "venv", "nothing", PYTHON="python-of-nowhere")
    assert result.returncode == 1
    assert "python-of-nowhere is missing: install Python 3.11 or newer" in result.stderr


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    script = 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac'
    python = put_program(tmp_path / "python", script)
    result = run(TOOLS / "setup.sh", tmp_path / "venv", "nothing", PYTHON=str(python))
    assert result.returncode == 1
    assert "Python 3.9.2 is too old" in result.stderr


def test_a_python_without_venv_says_what_to_install(tmp_path: Path) -> None:
    script = 'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac'
    python = put_program(tmp_path / "python", script)
    result = run(TOOLS / "setup.sh", tmp_path / "venv", "nothing", PYTHON=str(python))
    assert result.returncode == 1
    assert "apt-get install -y python3-venv" in result.stderr


def put_package(folder: Path, **modules: str) -> Path:
    """Write a package with the modules given by name."""
    folder.mkdir()
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return folder


TINY = {
    "__init__": "from tiny.engine import Engine\n",
    "engine": """
from tiny.parts import turn

class Engine:
    def start(self) -> None:
        turn(self)

    def _stall(self) -> None:
        pass
""",
    "parts": """
def turn(engine: object) -> None:
    engine._stall()
""",
}


def reachability(package: Path) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, TOOLS / "reachability.py", "--check", "--source", package)


def test_code_that_is_reached_passes_the_check(tmp_path: Path) -> None:
    result = reachability(put_package(tmp_path / "tiny", **TINY))
    assert (result.returncode, result.stdout) == (0, "")


def test_dead_functions_methods_and_modules_are_found(tmp_path: Path) -> None:
    planted = TINY | {
        "parts": TINY["parts"] + "\n\ndef brake() -> None:\n    brake()\n",
        "engine": TINY["engine"] + "\n    def _explode(self) -> None:\n        pass\n",
        "spare": "def unused() -> None:\n    pass\n",
    }
    result = reachability(put_package(tmp_path / "tiny", **planted))
    assert result.returncode == 1
    assert result.stdout.split("\n") == [
        "     2 tiny.spare",
        "     2 tiny.parts:brake",
        "     2 tiny.engine:Engine._explode",
        "     6 lines in 3 places",
        "",
    ]


def test_what_is_found_is_reported_without_the_check(tmp_path: Path) -> None:
    package = put_package(tmp_path / "tiny", **TINY, spare="def unused() -> None:\n    pass\n")
    result = run(sys.executable, TOOLS / "reachability.py", "--source", package)
    assert (result.returncode, "tiny.spare" in result.stdout) == (0, True)


def test_a_public_class_name_that_is_taken_twice_is_found(tmp_path: Path) -> None:
    one = "class Part:\n    pass\n\n\nclass _Own:\n    pass\n"
    package = put_package(tmp_path / "tiny", one=one, other=f"\n{one}", third="Part = 1\n")
    result = run(sys.executable, TOOLS / "class_names.py", package)
    assert result.returncode == 1
    assert result.stdout == "Part is defined 2 times: one.py:1, other.py:2\n"
    (package / "other.py").unlink()
    assert run(sys.executable, TOOLS / "class_names.py", package).returncode == 0


def test_functions_are_drawn_alike_with_and_without_their_files() -> None:
    asked, answered = (
        run(sys.executable, TOOLS / "draw_functions.py", *more).stdout.splitlines()
        for more in ([], ["--answers"])
    )
    assert len(asked) == len(answered) == 20
    for question, answer in zip(asked, answered, strict=True):
        assert answer.startswith(f"{question}  [")
        assert answer.endswith(".py]")
        assert ".py" not in question


def test_stored_results_tell_how_much_code_changed_since(tmp_path: Path) -> None:
    (tmp_path / "src" / "icestream").mkdir(parents=True)
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    shutil.copy(TOOLS / "figures.py", tmp_path / "tools")
    (tmp_path / "bench").mkdir()
    shutil.copy(TOOLS.parent / "bench" / "loaded_code.py", tmp_path / "bench")
    source = tmp_path / "src" / "icestream" / "one.py"
    source.write_text("one = 1\n")
    person = ["-c", "user.name=a", "-c", "user.email=a@b"]
    run("git", "init", "-q", tmp_path)
    run("git", "-C", tmp_path, "add", "src")
    run("git", "-C", tmp_path, *person, "commit", "-qm", "one")
    commit = run("git", "-C", tmp_path, "rev-parse", "HEAD").stdout.strip()[:12]
    report = {
        "bench": "joins",
        "size": "full",
        "commit": commit,
        "date": "2026-01-02T03:04:05",
        "machine": {"load_before": 0.5},
        "bars": [{"name": "rate", "holds": False}],
    }
    (tmp_path / "docs" / "figures" / "joins.json").write_text(json.dumps(report))
    tool: list[str | Path] = [sys.executable, tmp_path / "tools" / "figures.py", "--check"]
    told = run(*tool)
    assert told.returncode == 0
    assert told.stdout.split() == [
        *("joins", "full", commit, "2026-01-02", "load", "0.5", "this", "code;"),
        *("bars", "missed:", "rate"),
    ]
    source.write_text("one = 2\n")
    told = run(*tool)
    assert told.returncode == 1
    assert "1 files changed since" in told.stdout
    report["code"] = asdict(LoadedCode.of(["other"], tmp_path / "src"))
    (tmp_path / "docs" / "figures" / "joins.json").write_text(json.dumps(report))
    assert run(*tool).returncode == 0


PAGE = """# Page

## joins: how fast

We join 1,234,568 events/s, 3.1 times as many, in 64 MB.

| a | b |
|---|---|
| 1.23 million | 99.5 |

[all](figures/joins.json)

## other

A peer has 7 times that. `5 times` in code is no number.
"""


def test_numbers_in_documents_must_be_in_a_stored_result(tmp_path: Path) -> None:
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    shutil.copy(TOOLS / "document_numbers.py", tmp_path / "tools")
    figures = {"rate": 1234567.8, "ratios": [{"spark": 3.14159}]}
    (tmp_path / "docs" / "figures" / "joins.json").write_text(json.dumps(figures))
    (tmp_path / "README.md").write_text("fine\n")
    page = tmp_path / "docs" / "performance.md"
    tool: list[str | Path] = [sys.executable, tmp_path / "tools" / "document_numbers.py"]
    page.write_text(PAGE)
    told = run(*tool)
    assert told.returncode == 1
    assert told.stdout.splitlines() == [
        "docs/performance.md:5: 64 MB (joins.json)",
        "docs/performance.md:9: 99.5 (joins.json)",
        "docs/performance.md:15: 7 times (no stored result is linked)",
    ]
    page.write_text(
        PAGE.replace("We join", "<!-- given: 64 MB -->\nWe join")
        .replace("99.5", "")
        .replace("A peer", "<!-- measured: 0123abc, python peer.py -->\nA peer")
    )
    assert run(*tool).returncode == 0
