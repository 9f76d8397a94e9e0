"""The files of a version of the table of what holds, in a sealed file.

Idea: a run is one file, or several with a range of keys each, the first of which begins at 0. So a
list of files, oldest run first, says where each run begins.

Invariants:
1. A manifest that was changed since it was written is refused
   (`test_a_damaged_file_of_a_table_is_named`).
2. Manifests of earlier releases, without bytes, are read
   (`test_a_table_of_an_earlier_release_is_read`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from icestream.state.versions.sealed import FORMAT, opened, sealed

#: how names of manifests begin
MANIFEST = "manifest-"


def manifest_name(version: int) -> str:
    """Return the name of the manifest of a version."""
    return f"{MANIFEST}{version:013d}"


class TableRun(NamedTuple):
    """A file with sorted rows: a run, a range of the keys of one, or a part."""

    #: the least key that it may have; the first file of a run, and of the parts, has 0
    first: int
    name: str
    #: of its rows in memory; 0 if an earlier release wrote it
    bytes: int = 0


@dataclass(frozen=True)
class Manifest:
    """The files of one version of a table."""

    version: int
    #: columns of the rows
    schema: pa.Schema
    key: tuple[str, ...]
    #: the files of each run in the order of their keys, oldest run first
    runs: tuple[TableRun, ...] = ()
    #: in the order of their keys
    parts: tuple[TableRun, ...] = ()
    #: column with the time of the update that a row answers; None if rows have no age
    updated: str | None = None

    @property
    def name(self) -> str:
        return manifest_name(self.version)

    @property
    def names(self) -> set[str]:
        return {each.name for each in (*self.runs, *self.parts)}

    def to_bytes(self) -> bytes:
        schema = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        return sealed({**self.__dict__, "schema": schema})

    @classmethod
    def from_bytes(cls, path: str, data: bytes) -> Manifest:
        """Return what is written in a file; DamageError if it was changed since."""
        # earlier releases wrote many lines without a seal
        is_sealed = not data.startswith(b"{\n")
        found: dict[str, Any] = opened(path, data, range(FORMAT)) if is_sealed else json.loads(data)
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["schema"])))
        # earlier releases wrote only the names of runs
        runs = [TableRun(0, each) if isinstance(each, str) else each for each in found["runs"]]
        return cls(
            found["version"],
            schema,
            tuple(found["key"]),
            tuple(TableRun(*each) for each in runs),
            tuple(TableRun(*each) for each in found["parts"]),
            found.get("updated"),
        )


def runs_of(files: Sequence[TableRun]) -> list[list[TableRun]]:
    """Return the files of each run."""
    runs: list[list[TableRun]] = []
    for file in files:
        if file.first == 0:
            runs.append([])
        runs[-1].append(file)
    return runs
