"""What the components of a dataflow hold in memory, and where more of it would help.

Idea: an array of an arena does not shrink, so a shard keeps what it took; what nobody has taken yet
goes where it is missing. A shard shows that by growing, or, where it cannot, by reading groups that
had to leave. Both fade by half in each version, so that one odd batch does not decide.

Invariants:
1. No shard is said to hold more than it was given, so what all hold fits into what all were given
   (`test_nobody_holds_more_than_was_given`).
2. Who reads groups back asks for as many bytes (`test_who_reads_groups_back_asks_for_more`).

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
    """What shards hold and miss after a version."""

    of: Mapping[int, ShardMemory] = field(default_factory=dict)
    #: bytes that each shard had read from the log since its arena was made
    read: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def after(
        cls, before: MemoryUse, reports: Sequence[ShardReport], given: Sequence[int]
    ) -> MemoryUse:
        """Tell from the reports of a version; `given` are the quotas of all shards in it."""
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
        """Return a JSON object; its keys are text."""
        return {str(s): [each.held, each.growth, self.read[s]] for s, each in self.of.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MemoryUse:
        """Return what `to_json` wrote."""
        rows = {int(shard): each for shard, each in value.items()}
        return cls(
            {shard: ShardMemory(held, growth) for shard, (held, growth, _) in rows.items()},
            {shard: read for shard, (_, _, read) in rows.items()},
        )
