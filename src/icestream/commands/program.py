"""`icestream run`: run a user's program, with this Python in Spark's workers.

Invariants:
1. A program sees its own name and arguments, as if Python had started it
   (`test_a_program_sees_its_arguments_and_its_name`).
2. The command exits with the program's exit code (`test_the_exit_code_of_a_program_is_passed_on`).
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from icestream.api.launch import SHOWN


def run_program(program: Path, arguments: Sequence[str], *, ui: bool) -> int:
    """Run a program as `__main__`; return its exit code."""
    argv = [str(program), *arguments]
    path = [str(program.resolve().parent), *sys.path]
    shown = {SHOWN: "true"} if ui else {}
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(sys, "path", path),
        mock.patch.dict(os.environ, shown),
    ):
        try:
            runpy.run_path(str(program), run_name="__main__")
        except SystemExit as ended:
            return _code(ended)
    return 0


def _code(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    print(ended.code, file=sys.stderr)
    return 1
