from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from examples.__main__ import commands

HOMES = {
    "vwap": "examples.market.demo",
    "market": "examples.market.freshness",
    "recommender": "examples.recommender.demo",
    "integration": "examples.integration.demo",
    "lending": "examples.lending.demo",
    "advertising": "examples.advertising.demo",
}
#: the option that says how much is run, where it is not `--events`
SIZES = {"recommender": "count", "market": "seconds"}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def worker_python_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "set, so that it is restored")


def install_demo(monkeypatch: pytest.MonkeyPatch, home: str) -> list[dict[str, object]]:
    """Put a demo in place of the real one; returns the list it notes its arguments in."""
    calls: list[dict[str, object]] = []
    module = ModuleType(home)

    def demo(**given: object) -> int:
        calls.append(given)
        return 0

    module.demo = demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, home, module)
    return calls


@pytest.mark.parametrize("name", HOMES)
def test_an_example_gets_its_arguments_and_the_defaults_of_its_demo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    demo = import_module(HOMES[name]).demo
    wanted = {key: given.default for key, given in inspect.signature(demo).parameters.items()}
    calls = install_demo(monkeypatch, HOMES[name])
    size = SIZES.get(name, "events")
    arguments = [name, f"--{size}", "5", "--memory", "1 GB", "--keep", str(tmp_path), "--ui"]
    assert CliRunner().invoke(commands(), [name]).exit_code == 0
    assert CliRunner().invoke(commands(), arguments).exit_code == 0
    bare, given = calls
    assert bare == {key: wanted[key] for key in bare}
    assert given == bare | {size: 5, "memory": "1 GB", "keep": tmp_path, "ui": True}


def test_make_demo_knows_every_example() -> None:
    makefile = (ROOT / "Makefile").read_text()
    [names] = re.findall(r"^EXAMPLES := (.*)$", makefile, re.MULTILINE)
    assert sorted(names.split()) == sorted(HOMES)


def test_ratings_that_are_not_there_are_reported() -> None:
    result = CliRunner().invoke(commands(), ["recommender", "--ratings", "nowhere.dat"])
    assert result.exit_code == 2
    assert "nowhere.dat" in result.stderr
