"""List the stored results of benches: how old the code is that they measured, and on what machine.

Idea: a result names its commit; git tells which files of the package changed since. A commit with
`+` had local changes, so nobody can say what was measured.

usage: python tools/figures.py [--check]     with --check, fail for results of other code
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class StoredResult:
    """A result of a bench."""

    name: str
    size: str
    commit: str
    date: str
    load: float
    #: files of the package that changed since; None if the commit is not known here
    changed: int | None
    missed: tuple[str, ...]


def stored_results(root: Path = ROOT) -> list[StoredResult]:
    """Return the results in the documentation, the oldest code first."""
    found = [_read(path, root) for path in sorted((root / "docs" / "figures").glob("*.json"))]
    return sorted(found, key=lambda each: (each.changed is not None, -(each.changed or 0)))


def _read(path: Path, root: Path) -> StoredResult:
    report = json.loads(path.read_text())
    commit = report["commit"]
    return StoredResult(
        name=report["bench"],
        size=report["size"],
        commit=commit,
        date=report["date"][:10],
        load=report["machine"].get("load_before", 0.0),
        changed=None if commit.endswith("+") else _changed_since(commit, root),
        missed=tuple(bar["name"] for bar in report["bars"] if not bar["holds"]),
    )


def _changed_since(commit: str, root: Path) -> int | None:
    """Count the files of the package that differ from a commit."""
    command = ["git", "diff", "--name-only", commit, "--", "src/icestream"]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return None if told.returncode else len(told.stdout.split())


def main() -> int:
    """Print the results; return 1 with --check if one measured other code."""
    results = stored_results()
    for each in results:
        age = "unknown code" if each.changed is None else f"{each.changed} files changed since"
        missed = f"; bars missed: {', '.join(each.missed)}" if each.missed else ""
        print(
            f"{each.name:16} {each.size:5} {each.commit:13} {each.date}  load {each.load:<5} "
            f"{age}{missed}"
        )
    return int("--check" in sys.argv and any(each.changed != 0 for each in results))


if __name__ == "__main__":
    sys.exit(main())
