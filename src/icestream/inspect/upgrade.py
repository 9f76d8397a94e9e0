"""Converts a checkpoint of an older format to the one that this release reads.

Idea: since format 2 the files of the log are the same; what differs is the sequence of commits, in
which a commit without an epoch is one of epoch 0, and the state of some operators. Lists of all
live segments are read as they are. So a checkpoint
whose operators store what they stored then gets new seals, file by file, its plan last: until then
every query refuses it, and the command can be run again.

Invariants:
1. A query goes on from a converted checkpoint as the release that wrote it would have
   (`test_oracle_a_golden_checkpoint_goes_on`).
2. What cannot be converted is refused and stays as it is
   (`test_what_cannot_be_converted_is_refused_and_unchanged`).
3. A conversion that was interrupted can be run again (`test_crash_a_conversion_can_be_run_again`).

Limits: format 2, windows on a grid with count, minimum and maximum of numbers, sum and average of
integers and decimals, panes on the log. Sums of doubles were stored with 106 bits only. The release
that wrote the checkpoint knows no epochs: it must not run any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from icestream.core.errors import CheckpointError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.plan import state_schema
from icestream.state.files import Files, replace_file
from icestream.state.versions.commits import COMMITS, PLAN
from icestream.state.versions.sealed import FORMAT, READ, format_of, opened, sealed

#: formats that can be converted
OLDER = (2,)

#: windows and aggregates whose state is the same since then
_WINDOWS = ("window",)
_AGGREGATES = re.compile(r"(count|sum|avg|min|max)\(")
_SUM = re.compile(r"(?:sum|avg)\((\w+)\)")


@dataclass(frozen=True)
class Upgrade:
    """What was converted."""

    root: str
    before: int
    after: int
    #: files that were written
    files: int


def upgrade_checkpoint(location: str, files: Files | None = None) -> Upgrade:
    """Convert a checkpoint in place; CheckpointError with the reason if that is not possible."""
    checkpoint = Checkpoint(location, files)
    files, root = checkpoint.files, checkpoint.root
    plan_path = f"{root}/{PLAN}"
    data = files.read(plan_path)
    before = format_of(data) or FORMAT
    plan = opened(plan_path, data, OLDER)
    if before in READ:
        return Upgrade(root, before, before, 0)
    folder = f"{root}/{COMMITS}"
    paths = [f"{folder}/{name}" for name in files.list(folder)]
    commits = {path: opened(path, files.read(path), OLDER) for path in paths}
    reasons = [*_reasons(plan["plan"], commits)]
    if reasons:
        msg = (
            f"{root} has format {before} and cannot be converted: {'; '.join(reasons)}. Install "
            "the Icestream that wrote it, or start a new checkpoint"
        )
        raise CheckpointError(msg)
    if not _readable(plan.get("legend")):
        plan.pop("legend", None)
    changed = [path for path in paths if format_of(files.read(path)) != FORMAT]
    for path in changed:
        replace_file(files, path, sealed(commits[path]))
    replace_file(files, plan_path, sealed(plan))
    return Upgrade(root, before, FORMAT, len(changed) + 1)


def _reasons(plan: Mapping[str, Any], commits: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield why a checkpoint cannot be converted."""
    if "views" not in plan or "key groups" not in plan:
        yield "only the state of windows is the same as then"
        return
    doubles = {
        each.partition(":")[0]
        for each in plan.get("inputs", ())
        if each.endswith((" double", " float"))
    }
    for view in plan["views"]:
        if view.get("kind") not in _WINDOWS:
            yield f"the state of {view.get('kind')} has changed since"
        for each in view.get("aggregates", ()):
            added = _SUM.match(each)
            if not _AGGREGATES.match(each) or (added and added[1] in doubles):
                yield f"the state of {each} has changed since"
    stores = {each.get("decisions", {}).get("store") for each in commits.values()}
    if stores - {"panes", None}:
        yield "its log stores events, whose order of arrival is recorded differently now"


def _readable(legend: Any) -> bool:
    try:
        return legend is not None and state_schema.read(legend) is not None
    except (ValueError, KeyError, TypeError):
        return False
