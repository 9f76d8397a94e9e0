"""What a query is told about its resources, refused at once where it cannot work."""

from __future__ import annotations

from dataclasses import dataclass

from icestream.core.errors import DefinitionError
from icestream.core.units import format_bytes
from icestream.operators.grid.slice_log import SLICE_BYTES
from icestream.runtime.version.scaling import task_bounds

#: least bytes of one shard: its work buffers, and room for some groups
LEAST_QUOTA = 16 * SLICE_BYTES


@dataclass(frozen=True)
class Settings:
    """What a query is told about its resources."""

    root: str
    #: folder for arenas and exchange files on the local disk
    local: str
    #: bytes for all shards together
    budget: int
    shards: int = 2
    #: tasks that run the shards of a component, or the fewest and the most; None for one each
    parallelism: int | tuple[int, int] | None = None
    #: seconds from trigger to trigger; None where batches follow one another at once
    interval: float | None = None
    #: whether shards change tasks to even out what they take
    rebalance: bool = True
    #: versions that can be restored
    keep: int = 2
    codec: str | None = None
    #: whether tasks hand on files in the checkpoint's storage, as they share no other disk
    exchange_in_storage: bool = False
    #: a ticker calls on idle triggers too: batches without events make a version only while
    #: something waits
    ticker: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.shards < 1:
            msg = f"a query needs at least one shard; got {self.shards}"
            raise DefinitionError(msg)
        if self.parallelism is not None:
            task_bounds(self.parallelism, self.shards)
        if self.keep < 2:
            msg = (
                f"a query keeps at least two versions, the last and the one it is rebuilt from; "
                f"got keep={self.keep}"
            )
            raise DefinitionError(msg)
        self.check_memory(1)

    def check_memory(self, operators: int) -> None:
        """Refuse less memory than so many operators in each shard need for their buffers."""
        quota = operators * LEAST_QUOTA
        if self.budget < self.shards * quota:
            whose = "" if operators == 1 else f" of its {operators} kinds of windows"
            msg = (
                f"memory of {format_bytes(self.budget)} is too small for {self.shards} shards: "
                f"each needs {format_bytes(quota)} for the blocks and buffers{whose}. Give "
                f"the query at least {format_bytes(self.shards * quota)} with .memory(...), or "
                "fewer shards"
            )
            raise DefinitionError(msg)


__all__ = ["LEAST_QUOTA", "Settings"]
