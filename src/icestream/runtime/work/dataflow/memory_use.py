"""How much memory the components of a dataflow hold, and where more would help.

Idea: an array of an arena does not shrink, so a shard keeps the memory it took; free memory goes
where it is missing. A shard shows that by growing or, if it cannot grow, by reading evicted groups
back. Both measures halve with each version, so that a single odd batch does not decide.

Invariants:
1. No shard counts as holding more than its quota, so the total fits into the budget
   (`test_nobody_holds_more_than_was_given`).
2. A shard that reads groups back requests those bytes (`test_who_reads_groups_back_asks_for_more`).

Cost: O(shards of components).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icestream.runtime.version.quotas import ShardMemory
from icestream.runtime.version.task import ShardReport


@dataclass(frozen=True)
class MemoryUse:
    """What shards hold and need after a version."""

    of: Mapping[int, ShardMemory] = field(default_factory=dict)
    #: bytes that each shard has read from the log since its arena was created
    read: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def after(
        cls, before: MemoryUse, reports: Sequence[ShardReport], given: Sequence[int]
    ) -> MemoryUse:
        """Compute it from the reports of a version; `given` are the quotas of all shards."""
        of, read = {}, {}
        for report in reports:
            if "needed_bytes" not in report.statistics:
                continue
            shard = report.shard
            old = before.of.get(shard, ShardMemory(0))
            held = min(report.statistics["needed_bytes"], given[shard])
            read[shard] = report.statistics["cold"].get("bytes_read", 0)
            missed = max(0, read[shard] - before.read.get(shard, 0))
            of[shard] = ShardMemory(held, max(0, held - old.held) + missed + old.growth // 2)
        return cls(of, read)

    def to_json(self) -> dict[str, list[int]]:
        """Return a JSON object; its keys are strings."""
        return {str(s): [each.held, each.growth, self.read[s]] for s, each in self.of.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MemoryUse:
        """Return what `to_json` wrote."""
        rows = {int(shard): each for shard, each in value.items()}
        return cls(
            {shard: ShardMemory(held, growth) for shard, (held, growth, _) in rows.items()},
            {shard: read for shard, (_, _, read) in rows.items()},
        )
