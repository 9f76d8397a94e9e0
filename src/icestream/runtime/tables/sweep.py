"""Removes the files of dead attempts from a table.

Idea: a name tells the version and the epoch of a file. The commit of that version names the files
that count. Commits of all versions since the last sweep exist, because sweeps are more frequent
than manifests; what a table has of older versions is left alone.

Invariants:
1. What the table has is never removed, also if the checkpoint went back behind it
   (`test_a_repaired_checkpoint_leaves_the_tables_files`).
2. Files of newer owners are never removed (`test_only_files_of_dead_attempts_are_swept`).

Cost: one listing of the table's folder when a query starts, and every 16th version.
"""

from __future__ import annotations

from collections.abc import Collection

from icestream.runtime.tables.append_table import AppendTable
from icestream.state.versions.commits import Commit


def sweep_table(table: AppendTable, commits: Collection[Commit], epoch: int) -> list[str]:
    """Remove what no commit names, up to an epoch; return the removed paths inside the table."""
    layout = table.layout
    named = {each.path for commit in commits for each in commit.tables}
    first = min((commit.version for commit in commits), default=0)
    left = {
        path: told.version
        for path, told in layout.written()
        if path not in named and told.version >= first and told.epoch <= epoch
    }
    latest = table.latest() if left else -1
    # sinks count versions from 0
    doubtful = [path for path, version in left.items() if version - 1 <= latest]
    held = table.holds(doubtful) if doubtful else set()
    removed = [path for path in left if path not in held]
    layout.files.unlink(*(f"{layout.folder}/{path}" for path in removed))
    return removed
