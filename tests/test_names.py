"""Docstrings and pages name modules, paths and tests that exist.

A name in a docstring, `like_this`, is one that code of the project uses; in the docstring of a
package, one that code of this package uses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "icestream"
SOURCES = sorted(
    path for folder in ("src", "bench", "examples") for path in (ROOT / folder).rglob("*.py")
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

#: a test, or the first letters of several: `test_oracle_*`
TEST = re.compile(r"\b(test_\w+)(\*|\.\.\.)?")
#: parts of the package whose modules are named without it: `state.files`
ROOMS = "core|kernels|state|operators|runtime|inspect|dashboard"
MODULE = re.compile(
    rf"`((?:icestream|bench|examples|tests|{ROOMS})(?:\.\w+)+)(?:\(\))?`|^::: ([\w.]+)$",
    re.MULTILINE,
)
PLACE = re.compile(r"`((?:[a-z_]+/)+(?:[a-z_0-9]+(?:\.py)?)?)`")
NAME = re.compile(r"`((?!test_)[A-Za-z][A-Za-z0-9_]+)`")
#: names of Spark's
ELSEWHERE = {
    "AnsiTypeCoercion",
    "DataStreamWriter",
    "DecimalPrecision",
    "PartitionerAwareUnionRDD",
}
#: a long string, and what is before it on its line: nothing, if it is a docstring
STRING = re.compile(r'^([^"\n]*)"""(.*?)"""', re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"#.*$", re.MULTILINE)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def code() -> dict[Path, str]:
    """Return what every file of the project says beside docstrings and comments."""
    folders = (*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "tools").rglob("*.py"))
    return {path: COMMENT.sub("", STRING.sub(r"\1", path.read_text())) for path in folders}


def words_in(texts: Mapping[Path, str]) -> frozenset[str]:
    """Return all words in code, and the names of all its files and folders."""
    found = {word for text in texts.values() for word in re.findall(r"\w+", text)}
    return frozenset(found | {part for path in texts for part in (path.stem, path.parent.name)})


@cache
def words_below(folder: Path) -> frozenset[str]:
    """Return the words of a package; the root folder has all of them."""
    return words_in({path: text for path, text in code().items() if path.is_relative_to(folder)})


@cache
def known_tests() -> frozenset[str]:
    """Return the names of test files, and of what begins with `test_` in them."""
    defined = re.compile(r"^ *(?:def )?(test_\w+)(?:\(| *=)", re.MULTILINE)
    files = [path for path in code() if path.is_relative_to(ROOT / "tests")]
    files += (PACKAGE / "testing").rglob("*.py")
    return frozenset(
        {path.stem for path in files}
        | {name for path in files for name in defined.findall(code()[path])}
    )


def defined(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Yield names that statements define, also below `if` and `try`."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.If | ast.Try):
            yield from defined(node.body)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for name in ast.walk(node):
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                    yield name.id, node


def exists(dotted: str) -> bool:
    """Tell whether a dotted name is a module, or something that a module defines."""
    first, *rest = dotted.split(".")
    place = PACKAGE if first == "icestream" else PACKAGE / first
    place = place if place.is_dir() else ROOT / first
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    if rest and (place / f"{rest[0]}.py").is_file():
        place /= f"{rest.pop(0)}.py"
    else:
        place /= "__init__.py"
    if not place.is_file():
        return not rest and place.parent.is_dir()
    body = tree(place).body
    for name in rest:
        found = dict(defined(body)).get(name)
        if found is None:
            return False
        if not isinstance(found, ast.ClassDef):
            return True
        body = found.body
    return True


def is_there(path: str, page: Path) -> bool:
    """Tell whether a path leads somewhere: from the root, the package or the file that names it."""
    if path.partition("/")[0] not in folders():
        return True
    return any(
        (folder / path).exists() or (folder / f"{path}.py").exists()
        for folder in (ROOT, PACKAGE, PACKAGE.parent, page.parent)
    )


@cache
def folders() -> frozenset[str]:
    """Return the folders that a path of the project begins with."""
    named = [path for folder in (ROOT, PACKAGE) for path in folder.iterdir()]
    return frozenset(path.name for path in named if path.is_dir() and path.name != "build")


def docstrings(path: Path) -> str:
    """Return all docstrings of a module."""
    strings = STRING.findall(path.read_text())
    return "\n".join(text for before, text in strings if not before.strip())


def missing(text: str, path: Path) -> list[str]:
    """Return what a text names and what is not there."""
    unknown = [
        name
        for name, star in TEST.findall(text)
        if not (
            any(each.startswith(name) for each in known_tests()) if star else name in known_tests()
        )
    ]
    modules = [quoted or shown for quoted, shown in MODULE.findall(text)]
    unknown += [name for name in modules if not exists(name)]
    unknown += [place for place in PLACE.findall(text) if not is_there(place, path)]
    return unknown


def test_docstrings_name_what_exists() -> None:
    wrong = {}
    for path in SOURCES:
        text = docstrings(path)
        known = words_below(path.parent if path.name == "__init__.py" else ROOT)
        unused = [name for name in NAME.findall(text) if name not in known | ELSEWHERE]
        wrong[str(path.relative_to(ROOT))] = [*missing(text, path), *unused]
    assert {path: names for path, names in wrong.items() if names} == {}


def test_pages_name_what_exists() -> None:
    wrong = {str(path.relative_to(ROOT)): missing(path.read_text(), path) for path in PAGES}
    assert {path: names for path, names in wrong.items() if names} == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("checked by `test_that_nobody_wrote`", ["test_that_nobody_wrote"]),
        ("checked by `test_pages_name_what_exists`, `test_pages_*`", []),
        ("`test_nowhere_*`", ["test_nowhere_"]),
        ("see `icestream.state.nowhere`", ["icestream.state.nowhere"]),
        ("see `icestream.state.files.LocalFiles.open`, `tests.oracles`", []),
        ("`icestream.core.times.Micros.no`, `tests.nothing`", ["tests.nothing"]),
        ("::: icestream.nowhere", ["icestream.nowhere"]),
        ("`state/nowhere.py`, `state/files.py`, `state/files`", ["state/nowhere.py"]),
        ("`text/plain`", []),
    ],
)  # fmt: skip
def test_names_of_nothing_are_found(text: str, names: list[str]) -> None:
    assert missing(text, ROOT / "README.md") == names
