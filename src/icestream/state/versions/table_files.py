"""A file that a version adds to a table, as its commit describes it.

Idea: tasks write rows as files of the table itself, under names of their own attempt. The commit
names the ones it accepts; the table's log is told afterwards. Names carry the identity of the
checkpoint, the version and the attempt, so whoever removes files of dead attempts knows from a
name alone whose they are.

Invariants:
1. A name that is not of this form is never removed (`test_only_files_of_dead_attempts_are_swept`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from icestream.state.log.format import text, whole

#: the view of rows that were refused: late ones, and those without a time
LATE_VIEW = -1

_NAME = re.compile(
    r"part-\d{5,}-([0-9a-f]{32}-(?:\d+|late))-(\d{12,})-([0-9a-f]{6})[0-9a-f]{10}-\d+\."
)


@dataclass(frozen=True)
class TableFile:
    """A file with rows of one version, for the table of one view."""

    view: int
    #: the location of the table
    table: str
    #: the file, relative to that
    path: str
    rows: int
    bytes: int
    #: values of the columns that the table is partitioned by, if the file does not contain them
    values: Mapping[str, str | None] = field(default_factory=dict)
    #: least and greatest values and numbers of nulls, if the table's log has them
    statistics: Mapping[str, Any] = field(default_factory=dict)
    #: when it was written, in milliseconds since 1970
    written: int = 0

    @property
    def location(self) -> str:
        return f"{self.table}/{self.path}"

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TableFile:
        """Return what `to_json` wrote; ValueError if it is not valid."""
        path = text(value["path"])
        if path.startswith("/") or ".." in path.split("/"):
            msg = f"{path[:80]!r} is not a file inside its table"
            raise ValueError(msg)
        return cls(
            whole(value["view"]),
            text(value["table"]),
            path,
            whole(value["rows"], 0),
            whole(value["bytes"], 0),
            dict(value["values"]),
            dict(value["statistics"]),
            whole(value.get("written", 0), 0),
        )


@dataclass(frozen=True)
class TableFileName:
    """What the name of a table's file tells."""

    #: the identity of the checkpoint and the number of the view
    writer: str
    version: int
    epoch: int

    @classmethod
    def of(cls, name: str) -> TableFileName | None:
        """Return what a name tells; None if no task of a version wrote it."""
        found = _NAME.match(name)
        return None if found is None else cls(found[1], int(found[2]), int(found[3], 16))


def table_file_name(writer: str, version: int, place: int, attempt: str, number: int) -> str:
    """Return the name of the file that an attempt writes, without its ending."""
    return f"part-{place:05d}-{writer}-{version:012d}-{attempt}-{number}"
