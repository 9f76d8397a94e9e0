"""Draw functions of the package, to see whether a newcomer finds them from the folder listing.

Idea: without `--answers` only the names and what the functions do are shown. A newcomer is given
these and `find src/icestream -name '*.py'`, and guesses a file for each. The seed is fixed, so that
`--answers` shows the files of the same functions.

usage: python tools/draw_functions.py [--answers]
"""

from __future__ import annotations

import ast
import random
import sys
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "icestream"
SEED = 20
COUNT = 20


class DocumentedFunction(NamedTuple):
    """A public function of a module, and the first line of its docstring."""

    name: str
    summary: str
    file: str


def documented_functions(source: Path) -> list[DocumentedFunction]:
    """Return the public functions with a docstring that modules define, in the order of files."""
    return [
        DocumentedFunction(node.name, text.splitlines()[0], str(path.relative_to(source)))
        for path in sorted(source.rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        if (text := ast.get_docstring(node))
    ]


def main() -> None:
    """Print the functions that are drawn; with `--answers` where they are."""
    show_files = "--answers" in sys.argv[1:]
    drawn = random.Random(SEED).sample(documented_functions(SOURCE), COUNT)
    for number, each in enumerate(drawn, 1):
        answer = f"  [{each.file}]" if show_files else ""
        print(f"{number:2}. {each.name}: {each.summary}{answer}")


if __name__ == "__main__":
    main()
