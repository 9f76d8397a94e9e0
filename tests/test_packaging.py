from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: packages that pyspark and numba depend on, and whose names are parts of their interfaces
COME_ALONG = {"py4j", "llvmlite"}
USER_PROGRAM = ROOT / "tools" / "user_program.py"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    run = subprocess.run([*build, str(ROOT)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    [path] = folder.glob("icestream-*.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_the_wheel_holds_every_module_of_the_sources(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    wanted = {str(path.relative_to(source)) for path in source.glob("icestream/**/*.py")}
    assert wanted <= set(wheel.namelist())


@pytest.mark.slow
def test_the_wheel_holds_its_types_and_its_licence(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "icestream/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests") for name in names)


@pytest.mark.slow
def test_the_wheel_has_the_icestream_command(wheel: zipfile.ZipFile) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "icestream = icestream.cli:main" in wheel.read(name).decode()


@pytest.mark.slow
def test_the_sdist_holds_what_a_build_and_a_reader_need(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], capture_output=True, check=True)
    [path] = tmp_path.glob("icestream-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "SECURITY.md", "CHANGELOG.md", "mkdocs.yml"} <= names
    assert {"src/icestream/py.typed", "examples/shop_windows.py", "tools/release.sh"} <= names


@pytest.mark.slow
def test_a_program_is_typed_against_the_installed_wheel(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    wheel.extractall(installed)
    check = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", str(USER_PROGRAM)]
    check.append("--follow-imports=silent")
    # the sources are not on the path: only what the wheel brings is seen
    run = subprocess.run(
        [*check, "--cache-dir", str(tmp_path / "cache")],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_changelog_tells_of_this_version(project: dict[str, Any]) -> None:
    version = project["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_badges_are_true(project: dict[str, Any]) -> None:
    text = (ROOT / "README.md").read_text()
    badges = dict(re.findall(r"img.shields.io/badge/(\w+)-([^)]*?)-\w+\)", text))
    known = project["project"]
    assert badges == {
        "version": known["version"],
        "python": known["requires-python"].removeprefix(">=") + "%2B",
        "license": known["license"].replace("-", "--"),
        "types": "mypy%20strict",
    }


def test_the_installed_version_is_that_of_the_project(project: dict[str, Any]) -> None:
    assert metadata.version("icestream") == project["project"]["version"]


def test_every_dependency_has_a_range_with_both_ends(project: dict[str, Any]) -> None:
    for dependency in project["project"]["dependencies"]:
        assert ">=" in dependency, dependency
        assert ",<" in dependency, dependency


def imported(path: Path) -> set[str]:
    """Return the packages that a module imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def test_the_package_imports_what_it_declares(project: dict[str, Any]) -> None:
    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[^\w-]", each)[0] for each in requirements}

    declared = names(project["project"]["dependencies"]) | COME_ALONG
    extras = project["project"]["optional-dependencies"]
    places = {"testing": "testing", "delta": "delta.py", "iceberg": "iceberg.py"}
    wrong = []
    for path in sorted((ROOT / "src" / "icestream").rglob("*.py")):
        of_extras = (names(extras[extra]) for extra, part in places.items() if part in path.parts)
        allowed = declared.union(*of_extras)
        strange = imported(path) - allowed - sys.stdlib_module_names - {"icestream"}
        wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in sorted(strange)]
    assert wrong == []


def test_every_source_folder_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "src" / "icestream").glob("**/*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_only_folders_that_tests_import_are_packages() -> None:
    packages = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("__init__.py")}
    shared = {Path("tests", name) for name in ("faults", "fixtures", "oracles", "suites")}
    assert shared | {Path("tests")} <= packages
    inside = {path for path in packages if shared & {path, *path.parents}}
    assert packages == {Path("tests"), *inside}


def test_bare_make_names_every_target_it_has() -> None:
    run = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = (ROOT / "Makefile").read_text().splitlines()
    targets = [line.removeprefix(".PHONY: ") for line in lines if line.startswith(".PHONY: ")]
    explained = [line.split()[0] for line in run.stdout.splitlines() if line.startswith("  ")]
    assert explained == targets


def test_make_and_bench_install_the_same_flink() -> None:
    from bench.peer_environments import FLINK

    lines = (ROOT / "tools" / "peers-flink.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [FLINK.requirement]
