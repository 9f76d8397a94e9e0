"""Which code a bench ran: the modules of the package that its processes loaded, and their digest.

Idea: a stored result is worth as much as its code is still the code. While a bench runs, every
Python process that it starts notes the modules of the package that it imports: Python itself
imports `loading/sitecustomize.py` when a process starts, and forked workers of Spark inherit it.
The report has their names and a digest of their statements.

Invariants:
1. Modules of child processes count, also those that a forked process imports
   (`test_modules_of_child_processes_are_noted`).
2. A digest changes with a statement, and not with a docstring, a comment or the layout
   (`test_a_digest_follows_statements_and_not_words`).

Limits: processes with a `PYTHONPATH` of their own, such as peers and checkouts of older commits,
are not noted. Digests of different versions of Python may differ.
"""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: imported by every Python process that has it in its path
_HOOK = Path(__file__).with_name("loading")
#: the file to which processes append the names of modules
NOTES = "ICESTREAM_LOADED_MODULES"
PACKAGE = "icestream"


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """The modules that a run loaded."""

    digest: str
    #: names below the package, separated by blanks
    modules: str

    @classmethod
    def of(cls, modules: Iterable[str], source: Path) -> LoadedCode:
        """Describe modules by name, whose package is in the folder `source`."""
        names = sorted(set(modules))
        return cls(digest(names, source), " ".join(names))

    def is_code_of(self, source: Path) -> bool:
        """Whether the modules are as they were."""
        return digest(self.modules.split(), source) == self.digest


def digest(modules: Iterable[str], source: Path) -> str:
    """Digest the statements of modules; those that are gone count as empty."""
    total = hashlib.sha256()
    for name in modules:
        total.update(f"{name}\n{_statements(name, source)}\n".encode())
    return total.hexdigest()[:16]


def _statements(name: str, source: Path) -> str:
    """Return the statements of a module in one form, without docstrings and comments."""
    path = source.joinpath(PACKAGE, *name.split("."))
    file = next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)
    if file is None:
        return ""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def watched(bench_module: str, measure: Callable[[], T], source: Path) -> tuple[T, LoadedCode]:
    """Call `measure`, which a bench's module defines, and return the code that it ran as well."""
    before, environment = set(sys.modules), dict(os.environ)
    path = [str(_HOOK), *filter(None, [environment.get("PYTHONPATH")])]
    with tempfile.NamedTemporaryFile("r", prefix="icestream-modules-") as notes:
        os.environ.update({NOTES: notes.name, "PYTHONPATH": os.pathsep.join(path)})
        try:
            # this process has imported all benches; a new one imports what this bench needs
            subprocess.run([sys.executable, "-c", f"import {bench_module}"], check=True)
            result = measure()
        finally:
            os.environ.clear()
            os.environ.update(environment)
        names = {*notes.read().split(), *(set(sys.modules) - before)}
    inner = {n.removeprefix(f"{PACKAGE}.") for n in names if n.startswith(f"{PACKAGE}.")}
    return result, LoadedCode.of(inner, source)
