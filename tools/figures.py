"""List the stored results of benches: how old the code is that they measured, and on what machine.

Idea: a result names the modules of the package that its processes loaded, and their digest: it is
of this code if the digest is. An older result names its commit only; git tells which files of the
package changed since. A commit with `+` had local changes, so nobody can say what was measured.

usage: python tools/figures.py [--check]     with --check, fail for results of other code
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.loaded_code import LoadedCode  # noqa: E402


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
    #: whether the code that ran is the code that is here
    current: bool
    missed: tuple[str, ...]


def stored_results(root: Path = ROOT) -> list[StoredResult]:
    """Return the results in the documentation, the oldest code first."""
    found = [_read(path, root) for path in sorted((root / "docs" / "figures").glob("*.json"))]
    return sorted(
        found, key=lambda each: (each.current, each.changed is not None, -(each.changed or 0))
    )


def _read(path: Path, root: Path) -> StoredResult:
    report = json.loads(path.read_text())
    commit = report["commit"]
    changed = None if commit.endswith("+") else _changed_since(commit, root)
    code = report.get("code")
    return StoredResult(
        name=report["bench"],
        size=report["size"],
        commit=commit,
        date=report["date"][:10],
        load=report["machine"].get("load_before", 0.0),
        changed=changed,
        current=LoadedCode(**code).is_code_of(root / "src") if code else changed == 0,
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
        age = "this code" if each.current else age
        missed = f"; bars missed: {', '.join(each.missed)}" if each.missed else ""
        print(
            f"{each.name:16} {each.size:5} {each.commit:13} {each.date}  load {each.load:<5} "
            f"{age}{missed}"
        )
    return int("--check" in sys.argv and not all(each.current for each in results))


if __name__ == "__main__":
    sys.exit(main())
