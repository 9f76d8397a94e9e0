from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

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
