from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from icestream import cli, doctor
from icestream.core.errors import (
    BudgetError,
    CheckpointError,
    DamageError,
    DefinitionError,
    IcestreamError,
    StorageError,
)

CALL_CENTRE = "icestream.demo.call_centre.demo"

ERRORS = [
    (DefinitionError("slide must divide the range"), 1),
    (CheckpointError("another plan"), 1),
    (StorageError("disk full"), 1),
    (DamageError("chk/commits/7", "checksum differs"), 3),
    (BudgetError("window holds 500 MB"), 4),
]


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


@pytest.fixture(autouse=True)
def no_worker_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without PYSPARK_PYTHON, and forget afterwards what a command set."""
    monkeypatch.setenv("PYSPARK_PYTHON", "set, so that it is restored")
    monkeypatch.delenv("PYSPARK_PYTHON")


def install_demo(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None = None
) -> list[dict[str, object]]:
    """Put a demo in place of the real one; returns the list it notes its arguments in."""
    calls: list[dict[str, object]] = []
    module = ModuleType(CALL_CENTRE)

    def demo(**given: object) -> int:
        calls.append(given)
        if error is not None:
            raise error
        return 0

    module.demo = demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, CALL_CENTRE, module)
    return calls


def test_help_explains_the_product_and_the_exit_codes(runner: CliRunner) -> None:
    result = runner.invoke(cli.app, ["--help"])
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "state is far larger than memory" in text
    assert "0 fine, 1 failure, 2 wrong usage, 3 damaged checkpoint, 4 budget too small" in text
    for command in ("demo", "run", "sql", "plan", "ui", "state", "doctor", "version"):
        assert command in text
    assert "--install-completion" in text


def test_bare_call_shows_the_help(runner: CliRunner) -> None:
    assert "Usage" in runner.invoke(cli.app, []).output


def test_version_names_icestream_and_spark(runner: CliRunner) -> None:
    result = runner.invoke(cli.app, ["version"])
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    assert first.startswith("icestream 0.")
    assert second.startswith("pyspark 4.")


def test_help_imports_neither_spark_nor_arrow_nor_numba() -> None:
    code = (
        "import sys, icestream.cli; "
        "print([m for m in ('pyspark', 'pyarrow', 'numba', 'pandas') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_demo_passes_its_arguments_on(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = install_demo(monkeypatch)
    arguments = ["demo", "--events", "5", "--memory", "1 GB", "--keep", str(tmp_path), "--ui"]
    assert runner.invoke(cli.app, arguments).exit_code == 0
    [given] = calls
    assert given["events"] == 5
    assert given["memory"] == "1 GB"
    assert given["keep"] == tmp_path
    assert given["ui"]


def test_demo_has_the_defaults_of_the_function_it_runs(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = import_module(CALL_CENTRE).demo
    wanted = {name: given.default for name, given in inspect.signature(demo).parameters.items()}
    calls = install_demo(monkeypatch)
    runner.invoke(cli.app, ["demo"])
    [given] = calls
    assert given == {name: wanted[name] for name in given}


def test_spark_workers_run_this_python(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    install_demo(monkeypatch)
    runner.invoke(cli.app, ["demo"])
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: type(value).__name__)
def test_each_kind_of_error_has_its_exit_code(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, error: IcestreamError, code: int
) -> None:
    install_demo(monkeypatch, error)
    result = runner.invoke(cli.app, ["demo"])
    assert result.exit_code == code
    assert result.stderr == f"icestream: {error}\n"
    assert result.stdout == ""


def test_an_error_is_one_clean_line(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    install_demo(monkeypatch, BudgetError("window  1 GB\njoin    2 GB\n"))
    result = runner.invoke(cli.app, ["demo"])
    assert result.stderr == "icestream: window 1 GB join 2 GB\n"
    assert "Traceback" not in result.output


def test_an_interruption_ends_with_130(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    install_demo(monkeypatch, KeyboardInterrupt())
    assert runner.invoke(cli.app, ["demo"]).exit_code == 130


def test_a_bug_keeps_its_traceback(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    install_demo(monkeypatch, ZeroDivisionError("a bug"))
    assert isinstance(runner.invoke(cli.app, ["demo"]).exception, ZeroDivisionError)


@pytest.mark.parametrize("arguments", [["nonsense"], ["demo", "--nonsense"], ["demo", "nonsense"]])
def test_wrong_usage_ends_with_2(runner: CliRunner, arguments: list[str]) -> None:
    assert runner.invoke(cli.app, arguments).exit_code == 2


@pytest.fixture
def healthy_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder to measure on a machine that has Java; the probe is small."""
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(doctor, "PROBE_BYTES", 4096)
    return tmp_path


def test_doctor_reports_as_text(runner: CliRunner, healthy_machine: Path) -> None:
    result = runner.invoke(cli.app, ["doctor", "--folder", str(healthy_machine)])
    assert result.exit_code == 0
    assert "written and synced" in result.output


def test_doctor_reports_as_json(runner: CliRunner, healthy_machine: Path) -> None:
    result = runner.invoke(cli.app, ["doctor", "--folder", str(healthy_machine), "--json"])
    assert result.exit_code == 0
    findings = json.loads(result.stdout)["findings"]
    names = [finding["name"] for finding in findings]
    assert names == [
        "python",
        "spark",
        "java",
        "cores",
        "memory",
        "process",
        "disk space",
        "disk speed",
    ]
    assert findings[-1]["values"]["bytes per second"] > 0


def test_doctor_fails_without_java(runner: CliRunner, healthy_machine: Path) -> None:
    (healthy_machine / "home" / "bin" / "java").unlink()
    result = runner.invoke(cli.app, ["doctor", "--folder", str(healthy_machine)])
    assert result.exit_code == 1
    assert "install Java 17" in result.output


def test_doctor_wants_an_existing_folder(runner: CliRunner, tmp_path: Path) -> None:
    result = runner.invoke(cli.app, ["doctor", "--folder", str(tmp_path / "missing")])
    assert result.exit_code == 2
