"""A wheel in an empty environment, without extras, does what the documents promise.

The environment has what `pip install` brings and nothing of this repository. `make release` passes
the wheels it has built in ICESTREAM_WHEEL and ICESTREAM_KERNELS; without it the first is built
here, and the second of the machine code of this user. Commands run in the order of the tests: each
leaves what later ones look at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from icestream.kernels.code_cache import code_folder
from tools.kernel_wheel import kernel_wheel

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

ORDERS: list[dict[str, object]] = [
    {"at": "2026-03-01T12:00:01Z", "shop": "Oslo", "price": 20.0},
    {"at": "2026-03-01T12:00:04Z", "shop": "Lisbon", "price": 12.5},
    {"at": "2026-03-01T12:00:09Z", "shop": "Oslo", "price": 5.0},
    {"at": "2026-03-01T12:00:31Z", "shop": "Oslo", "price": 1.0},
]
LATER: list[dict[str, object]] = [{"at": "2026-03-01T12:00:32Z", "shop": "Bergen", "price": 2.0}]
STATEMENT = (
    "SELECT shop, count(*) AS orders, sum(price) AS revenue "
    "FROM orders [TUMBLE 20 SECONDS] GROUP BY shop"
)
ANSWERS = [("Lisbon", 1, 12.5), ("Oslo", 1, 1.0), ("Oslo", 2, 25.0)]
#: where `icestream sql --checkpoint chk` keeps its state
CHECKPOINT = "chk/sql"
SCHEMA = "at timestamp, shop string, price double"
PROGRAM = """
import sys
import icestream as ice

spark = ice.local_session(cores=2, memory="1g")
orders = ice.stream(
    spark.readStream.schema("at timestamp, shop string, price double").json(sys.argv[1]), time="at"
)
query = (
    orders.window("20 seconds").groupBy("shop").agg(ice.sum("price").alias("revenue"))
    .writeStream.format("parquet").option("path", "rows").option("checkpointLocation", "program")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
print(sorted(row["revenue"] for row in spark.read.parquet("rows").collect()))
"""
COMMANDS = """
import json
import typer.main
from icestream.cli import app

def paths(command, path):
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from paths(below, [*path, name])

print(json.dumps(list(paths(typer.main.get_command(app), []))))
"""


COUNTED = """
from icestream.kernels.code_cache import code_folder, compiling
from icestream.runtime.spark import warm_up
warm_up.kernels()
print(compiling.count, code_folder())
"""


@dataclass(frozen=True)
class Environment:
    """An environment of its own, and a folder to work in."""

    bin: Path
    work: Path

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables of this process, without those that lead to this repository."""
        ours = ("PYTHON", "VIRTUAL_ENV", "PYTEST", "NUMBA", "SPARK_HOME", "ICESTREAM")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        home = str(self.work.parent / "home")
        return {**kept, "PYSPARK_PYTHON": str(self.bin / "python"), "HOME": home}

    def run(self, *command: str | Path, folder: str = ".") -> str:
        """Run a program of the environment to its end and return what it prints."""
        done = subprocess.run(
            [str(self.bin / command[0]), *map(str, command[1:])],
            cwd=self.work / folder,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def state(self, command: str, *words: str) -> str:
        """Run a command about the state of the statement's query."""
        return self.run("icestream", "state", command, CHECKPOINT, *words)

    def answer(self, *words: str) -> str:
        """Answer the statement over the orders that are there."""
        source = ("--input", "events", "--format", "json", "--schema", SCHEMA, "--time", "at")
        return self.run("icestream", "sql", STATEMENT, *source, *words)

    def arrive(self, name: str, orders: Sequence[dict[str, object]]) -> None:
        """Write a file of orders."""
        lines = "\n".join(map(json.dumps, orders))
        (self.work / "events" / f"{name}.json").write_text(lines)


def built(folder: Path) -> Path:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(ROOT)], capture_output=True, check=True)
    [wheel] = folder.glob("icestream-*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with nothing but the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("install")
    given = os.environ.get("ICESTREAM_WHEEL")
    wheel = Path(given).resolve() if given else built(folder)
    code = os.environ.get("ICESTREAM_KERNELS")
    kernels = Path(code).resolve() if code else kernel_wheel(Path(str(code_folder())), folder)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "empty")], check=True)
    environment = Environment(folder / "empty" / "bin", folder / "work")
    for name in ("work", "home", "work/events", "work/tutorial"):
        (folder / name).mkdir()
    environment.arrive("orders", ORDERS)
    environment.run("python", "-m", "pip", "install", "--disable-pip-version-check", wheel, kernels)
    return environment


def test_only_the_package_and_its_dependencies_are_there(installed: Environment) -> None:
    listed = json.loads(installed.run("python", "-m", "pip", "list", "--format", "json"))
    names = {each["name"].lower() for each in listed}
    assert {"icestream", "pyspark", "numba"} <= names
    assert not names & {"pytest", "hypothesis", "duckdb", "matplotlib", "build", "mypy"}
    where = installed.run("python", "-c", "import icestream; print(icestream.__file__)")
    assert Path(where).is_relative_to(installed.bin.parent)


def test_a_first_query_compiles_nothing(installed: Environment) -> None:
    count, folder = installed.run("python", "-c", COUNTED).split()
    assert int(count) == 0
    assert not list(Path(folder).rglob("*.nbc"))


def test_every_command_explains_itself(installed: Environment) -> None:
    commands: list[list[str]] = json.loads(installed.run("python", "-c", COMMANDS))
    assert ["state", "verify"] in commands
    for words in commands:
        assert "Usage: icestream" in installed.run("icestream", *words, "--help")


def test_version_and_doctor(installed: Environment) -> None:
    assert installed.run("icestream", "version").startswith("icestream ")
    assert "java" in installed.run("icestream", "doctor").lower()


def test_the_demo(installed: Environment) -> None:
    installed.run("icestream", "demo", "--events", "20000", "--keep", "demo")
    assert any((installed.work / "demo").rglob("*.parquet"))


def test_a_program_runs(installed: Environment) -> None:
    (installed.work / "program.py").write_text(PROGRAM)
    told = installed.run("icestream", "run", "program.py", "--", "events")
    assert told.endswith("[12.5, 25.0]\n")


def test_a_statement_is_answered(installed: Environment) -> None:
    rows = [json.loads(line) for line in installed.answer("--json").splitlines()]
    assert sorted((row["shop"], row["orders"], row["revenue"]) for row in rows) == ANSWERS


def test_a_statement_goes_on_from_its_checkpoint(installed: Environment) -> None:
    installed.answer("--checkpoint", "chk", "--output", "out")
    installed.arrive("later", LATER)
    installed.answer("--checkpoint", "chk", "--output", "out")


def test_a_statement_is_planned(installed: Environment) -> None:
    told = installed.run("icestream", "plan", STATEMENT, "--columns", SCHEMA, "--time", "at")
    assert "memory" in told
    assert installed.run("icestream", "plan", "--checkpoint", CHECKPOINT)


def test_state_is_shown(installed: Environment) -> None:
    assert "watermark" in installed.state("show")
    assert "Oslo" in installed.state("groups")
    assert "1.0" in installed.state("get", "--key", "shop=Oslo")
    assert "Bergen" in installed.state("diff", "1", "2")


def test_state_is_checked_repaired_and_rewritten(installed: Environment) -> None:
    assert "fine" in installed.state("verify")
    installed.state("repair", "--to", "repaired")
    installed.state("export", "--kept", "panes", "--to", "state.parquet")
    installed.state("rewrite", "--kept", "panes", "--from", "state.parquet")
    assert "fine" in installed.state("verify")


def test_the_page_is_served(installed: Environment) -> None:
    command = [str(installed.bin / "icestream"), "ui", CHECKPOINT]
    with subprocess.Popen(
        command, cwd=installed.work, env=installed.variables, stdout=subprocess.PIPE, text=True
    ) as page:
        assert page.stdout is not None
        try:
            assert "http://127.0.0.1" in page.stdout.readline()
        finally:
            page.terminate()


def test_the_tutorial_prints_what_it_shows(installed: Environment) -> None:
    guide = ROOT / "docs" / "guide" / "tutorial.md"
    installed.run("python", TOOLS / "follow.py", guide, folder="tutorial")


def test_the_testing_tools_name_their_extra(installed: Environment) -> None:
    command = [str(installed.bin / "python"), "-c", "import icestream.testing"]
    done = subprocess.run(
        command, env=installed.variables, capture_output=True, text=True, check=False
    )
    assert "pip install 'icestream[testing]'" in done.stderr


def test_a_program_is_typed_against_the_installed_wheel(installed: Environment) -> None:
    (installed.work / "user_program.py").write_text((TOOLS / "user_program.py").read_text())
    command: Sequence[str] = [
        *(sys.executable, "-m", "mypy", "--strict", "--cache-dir", "mypy"),
        *("--python-executable", str(installed.bin / "python"), "user_program.py"),
    ]
    done = subprocess.run(command, cwd=installed.work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
