"""Errors of Icestream, one class for each reaction of the user.

Idea: the type of an error determines how to react, its message states what to change. Catching
`IcestreamError` catches all of them.
"""

from __future__ import annotations


class IcestreamError(Exception):
    """Base class of all errors that Icestream raises on purpose.

    Examples:
        >>> try:
        ...     kpis.select("nowhere")
        ... except ice.IcestreamError as error:
        ...     print(type(error).__name__)
        DefinitionError
    """


class DefinitionError(IcestreamError, ValueError):
    """The query as written cannot run: change the query."""


class InputError(IcestreamError, ValueError):
    """The data does not fit the query: fix the data or the query's schema."""


class CheckpointError(IcestreamError):
    """The checkpoint belongs to another plan, a newer format or another history: choose another."""


class DamageError(IcestreamError):
    """A file of the checkpoint is damaged or missing: restore that file from a copy."""

    def __init__(self, path: str, what: str) -> None:
        self.path = path
        self.what = what
        super().__init__(
            f"{path}: {what}. Restore this file from a copy, or start from another checkpoint; "
            "nothing was computed from it."
        )

    def __reduce__(self) -> tuple[type[DamageError], tuple[str, str]]:
        """Pickle correctly, so that the error gets from a Spark task to the driver."""
        return DamageError, (self.path, self.what)


class BudgetError(IcestreamError):
    """The state does not fit into the memory budget: give more memory."""

    #: bytes that the part of the memory of this shard must have; 0 if that is not known
    needed: int = 0
    shard: int = -1


class StorageError(IcestreamError):
    """A write or read failed: free space or grant access, then restart; nothing is lost."""
