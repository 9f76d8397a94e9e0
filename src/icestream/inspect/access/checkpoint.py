"""A checkpoint opened for reading: its plan, its versions, the segments of each.

Idea: nothing is written and nothing is trusted. A version can be read if its commits, from its base
and from its last manifest on, exist, and all segments that are live in it.

Invariants:
1. Reading changes no file (`test_looking_changes_no_byte`).
2. A folder without plan and commits is not a checkpoint (`test_another_folder_is_no_checkpoint`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from icestream.core.errors import CheckpointError, DamageError, IcestreamError
from icestream.plan import state_schema as state_schemas
from icestream.plan.state_schema import StateSchema
from icestream.state.files import Files
from icestream.state.stores.store_files import files_at
from icestream.state.versions.commits import (
    COMMITS,
    PLAN,
    SEGMENTS,
    Commit,
    LiveSegment,
    VersionStore,
)
from icestream.state.versions.live_segments import live_at

#: folder of the state of a query on Spark, inside its checkpoint location
INSIDE = "icestream"


class NotACheckpoint(CheckpointError):
    """There is no checkpoint here: name another folder."""


class Checkpoint:
    """A checkpoint, read only."""

    def __init__(self, location: str, files: Files | None = None) -> None:
        """Open the checkpoint of a query, or the folder inside it that holds the state."""
        self.files = files or files_at(location)
        self.root = self._find(location.rstrip("/") or "/")
        self.store = VersionStore(self.files, self.root)

    def _find(self, location: str) -> str:
        for root in (location, f"{location}/{INSIDE}"):
            if self.files.exists(f"{root}/{PLAN}") or self.files.list(f"{root}/{COMMITS}"):
                return root
        msg = (
            f"{location} is not a checkpoint of Icestream: it has neither {PLAN} nor {COMMITS}. "
            "Name the checkpointLocation of a query"
        )
        raise NotACheckpoint(msg)

    @property
    def versions(self) -> list[int]:
        """Return the versions that have a commit file, ascending."""
        return self.store.versions()

    @cached_property
    def plan(self) -> Mapping[str, Any]:
        return self.store.plan()[0]

    @cached_property
    def state_schema(self) -> StateSchema:
        """Return the state schema of the last version."""
        return self.state_schema_of(None)

    def state_schema_of(self, commit: Commit | None) -> StateSchema:
        """Return the state schema of a version: queries change."""
        found = self.store.plan(commit)[1]
        if found is None:
            msg = (
                f"{self.root} was written by a version of Icestream that did not record its state "
                "schema: start the query again on a new checkpoint. `icestream state show` and "
                "`verify` still work on this one"
            )
            raise CheckpointError(msg)
        try:
            return state_schemas.read(found)
        except ValueError as error:
            raise DamageError(self.store.plan_path(commit), str(error)) from error

    def kept(self) -> list[int]:
        """Return the versions whose state can be read, ascending."""
        return [version for version in self.versions if self._is_whole(version)]

    def commit(self, version: int | None = None) -> Commit:
        """Return a version that can be read, by default the last one."""
        if not self.versions:
            msg = f"{self.root} has no version yet: the query has not finished its first batch"
            raise CheckpointError(msg)
        chosen = self.versions[-1] if version is None else version
        if chosen not in self.versions or (version is not None and not self._is_whole(chosen)):
            kept = ", ".join(map(str, self.kept())) or "none"
            msg = f"{self.root} has the versions {kept}, but not {chosen}"
            raise CheckpointError(msg)
        return self.store.load(chosen)

    def live(self, version: int) -> tuple[LiveSegment, ...]:
        return live_at(self.store, version)

    def history(self, commit: Commit) -> list[Commit]:
        """Return the versions that the state of a version consists of, up to that version."""
        first = max(1, min(commit.bases, default=1))
        return [*map(self.store.load, range(first, commit.version)), commit]

    def _is_whole(self, version: int) -> bool:
        try:
            self.history(self.store.load(version))
            live = self.live(version)
        except IcestreamError:
            return False
        return all(self.files.exists(f"{self.root}/{SEGMENTS}/{each.info.name}") for each in live)
