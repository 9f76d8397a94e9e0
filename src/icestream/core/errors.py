"""Errors of Icestream, one class per thing the user does next.

Idea: the type of an error tells how to react, its message tells what to change. Catching
`IcestreamError` catches all of them.
"""

from __future__ import annotations


class IcestreamError(Exception):
    """Anything that Icestream reports on purpose."""


class DefinitionError(IcestreamError, ValueError):
    """The query as written cannot run: change the query."""


class InputError(IcestreamError, ValueError):
    """The data does not fit the query: fix the data or the query's schema."""


class CheckpointError(IcestreamError):
    """The checkpoint belongs to another plan, a newer format or another history: choose another."""


class DamageError(IcestreamError):
    """A file of the checkpoint is damaged or missing: restore that file from a copy."""

    def __init__(self, path: str, what: str) -> None:
        """Name the damaged file and what is wrong with it."""
        self.path = path
        self.what = what
        super().__init__(
            f"{path}: {what}. Restore this file from a copy, or start from another checkpoint; "
            "nothing was computed from it."
        )

    def __reduce__(self) -> tuple[type[DamageError], tuple[str, str]]:
        """Survive the trip from a Spark task to the driver."""
        return DamageError, (self.path, self.what)


class BudgetError(IcestreamError):
    """The state cannot be kept inside the memory budget: give more memory."""


class StorageError(IcestreamError):
    """The disk refused: free space or grant access, then restart; nothing is lost."""
