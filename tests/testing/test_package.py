"""What an author of an operator outside this repository is given."""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import icestream.testing
from icestream.testing.conformance import EveryQuery

SUITE = [name for name in vars(EveryQuery) if name.startswith("test_")]


def example() -> str:
    """Return the program in the docstring of the package."""
    lines = inspect.cleandoc(icestream.testing.__doc__ or "").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("    from"))
    end = lines.index("Invariants:")
    return textwrap.dedent("\n".join(lines[first:end]))


def defined_by(program: str) -> Any:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(program, "icestream/testing/__init__.py", "exec"), names)
    return names["TestSpread"]()


@pytest.mark.parametrize("name", SUITE)
def test_the_example_of_the_package_passes(name: str, tmp_path: Path) -> None:
    getattr(defined_by(example()), name)(tmp_path)


def test_the_example_notices_a_wrong_aggregate(tmp_path: Path) -> None:
    wrong = defined_by(example().replace("max(a[1], b[1])", "b[1]"))
    with pytest.raises(AssertionError):
        wrong.test_oracle_random_streams(tmp_path)


@pytest.mark.parametrize("missing", [("hypothesis",), ("pytest",), ("hypothesis", "pytest")])
def test_without_the_extra_the_import_says_what_to_install(missing: tuple[str, ...]) -> None:
    program = f"""
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in {missing!r} else found(name)
try:
    import icestream.testing.simulated_disk
except ModuleNotFoundError as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    what = " and ".join(missing)
    wanted = f"icestream.testing needs {what}: run pip install 'icestream[testing]'"
    assert run.stdout.strip() == wanted
