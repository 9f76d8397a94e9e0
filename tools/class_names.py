"""Fail where a public class name stands for more than one class of the package.

usage: python tools/class_names.py [FOLDER]
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def repeated_names(source: Path) -> dict[str, list[str]]:
    """Return the public names of classes that several files of a folder define, and where."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path.relative_to(source)}:{node.lineno}")
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def main() -> int:
    """Print the names that are taken more than once; return 1 if there are any."""
    repeated = repeated_names(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
    for name, places in repeated.items():
        print(f"{name} is defined {len(places)} times: {', '.join(places)}")
    return int(bool(repeated))


if __name__ == "__main__":
    sys.exit(main())
