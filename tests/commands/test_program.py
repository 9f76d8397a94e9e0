from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from icestream import cli
from icestream.api.launch import SHOWN
from icestream.commands.program import run_program


def test_a_program_sees_its_arguments_and_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside.py").write_text("told = 'imported'")
    program = tmp_path / "program.py"
    program.write_text("import os, sys, beside\nprint(__name__, sys.argv[1:], beside.told)")
    before = list(sys.argv), list(sys.path)
    assert run_program(program, ["--day", "1"], ui=False) == 0
    assert capsys.readouterr().out == "__main__ ['--day', '1'] imported\n"
    assert (list(sys.argv), list(sys.path)) == before


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit()", 0), ("sys.exit(7)", 7), ("sys.exit('no')", 1)]
)
def test_the_exit_code_of_a_program_is_passed_on(tmp_path: Path, end: str, code: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import sys\n{end}")
    assert run_program(program, [], ui=False) == code


def test_the_queries_of_a_program_are_shown_if_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import os\nprint(os.environ.get({SHOWN!r}))")
    for ui in (False, True):
        run_program(program, [], ui=ui)
    assert capsys.readouterr().out == "None\ntrue\n"
    assert SHOWN not in os.environ


def test_the_command_hands_on_what_follows_two_dashes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)")
    result = CliRunner().invoke(cli.app, ["run", str(program), "--", "--ui", "1"])
    assert result.exit_code == 3
    assert result.stdout == "['--ui', '1']\n"
