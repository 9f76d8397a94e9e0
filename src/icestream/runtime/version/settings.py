"""The resources of a query; settings that cannot work are refused at once."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.units import format_bytes
from icestream.runtime.version.quotas import least_quota
from icestream.runtime.version.scaling import task_bounds


@dataclass(frozen=True)
class Settings:
    """The resources of a query."""

    root: str
    #: folder for arenas and exchange files on the local disk
    local: str
    #: bytes for all shards together, or for those of a host
    budget: int
    shards: int = 2
    #: bytes of disk for log, exchange and caches; None for any number
    disk: int | None = None
    #: tasks that run the shards of a component, or their minimum and maximum; None for one each
    parallelism: int | tuple[int, int] | None = None
    #: seconds from trigger to trigger; None if batches follow each other at once
    interval: float | None = None
    #: whether shards change tasks to balance the load
    rebalance: bool = True
    #: versions that can be restored
    keep: int = 2
    codec: str | None = None
    #: whether tasks exchange files in the checkpoint's storage, because they share no other disk
    exchange_in_storage: bool = False
    #: whether idle triggers run batches too: without events, a batch makes a version only while
    #: work is pending
    ticker: bool = False
    #: columns of stored bad rows; None if a bad row ends the query
    refused: pa.Schema | None = None
    #: whether every host has as many bytes
    per_host: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        if self.shards < 1:
            msg = f"a query needs at least one shard; got {self.shards}"
            raise DefinitionError(msg)
        if self.parallelism is not None:
            task_bounds(self.parallelism, self.shards)
        if self.keep < 2:
            msg = (
                f"a query must keep at least two versions, the last and the one it is rebuilt "
                f"from; got keep={self.keep}"
            )
            raise DefinitionError(msg)
        self.check_memory(least_quota())

    def check_memory(self, quota: int, components: int = 1) -> None:
        """Refuse less memory than all shards need, each of which needs a quota."""
        least = components * self.shards * quota
        if self.budget < least:
            several = "" if components == 1 else f"{components} components of "
            msg = (
                f"memory of {format_bytes(self.budget)} is too small for {several}{self.shards} "
                f"shards: each needs {format_bytes(quota)} for its blocks and buffers. Give the "
                f"query at least {format_bytes(least)} with .memory(...), or fewer shards"
            )
            raise DefinitionError(msg)
