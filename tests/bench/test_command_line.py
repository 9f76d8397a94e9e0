from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import bench.__main__ as command_line


def test_bench_passes_its_arguments_and_its_exit_code_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "set, so that it is restored")
    calls: list[dict[str, object]] = []

    def bench_command(**given: object) -> int:
        calls.append(given)
        return len(calls) - 1

    monkeypatch.setattr(command_line, "bench_command", bench_command)
    runner, target = CliRunner(), tmp_path / "out.json"
    arguments = ["windows", "--size", "full", "--json", str(target), "--only", "a,b"]
    assert runner.invoke(command_line.app, arguments).exit_code == 0
    assert runner.invoke(command_line.app, ["--list"]).exit_code == 1
    assert calls == [
        {"name": "windows", "size": "full", "json_file": target, "list_": False, "only": "a,b"},
        {"name": None, "size": "small", "json_file": None, "list_": True, "only": None},
    ]


def test_wrong_usage_ends_with_2() -> None:
    assert CliRunner().invoke(command_line.app, ["--size"]).exit_code == 2
