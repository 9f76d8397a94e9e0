"""The difference in the state between two versions: rows that were added and removed.

Idea: rows are compared as multisets, table by table and shard by shard. Only fingerprints of the
rows of one version are held in memory; a second pass fetches the rows that differ.

Invariant: the added and removed rows are those of a comparison of two multisets
(`test_oracle_a_difference_is_that_of_two_bags`).

Cost: each version is restored once, and a second time where it differs; about 100 bytes per row of
a shard. Limits: fingerprints have 128 bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import xxhash

from icestream.inspect.access.adapter_protocol import as_text
from icestream.inspect.state_rows import Reading, group_names

GONE, CAME = -1, 1


@dataclass(frozen=True)
class RowDifference:
    """A row that only one of two versions has."""

    #: -1: only the first version has it; 1: only the second
    change: int
    operator: str
    kept: str
    shard: int
    group: str | None
    row: str


def differences(reading: Reading, before: int, after: int) -> Iterator[RowDifference]:
    """Yield the rows of a selection that differ between two versions."""
    first, second = (replace(reading, version=version) for version in (before, after))
    for shard in sorted({*first.shards, *second.shards}):
        counts: Counter[bytes] = Counter()
        for side, which in ((first, GONE), (second, CAME)):
            for print_, _ in _rows(side, shard, which):
                counts[print_] += which
        for side, which in ((first, GONE), (second, CAME)):
            if any(count * which > 0 for count in counts.values()):
                for print_, change in _rows(side, shard, which):
                    if counts[print_] * which > 0:
                        counts[print_] -= which
                        yield change


def _rows(reading: Reading, shard: int, which: int) -> Iterator[tuple[bytes, RowDifference]]:
    """Yield the rows of a shard with their fingerprints."""
    if shard not in reading.shards:
        return
    for found in reading.rows([shard]):
        table = found.table
        for group, row in zip(group_names(found), found.rows.to_pylist(), strict=True):
            text = as_text(row)
            whole = f"{table.operator}\0{table.name}\0{group}\0{text}".encode()
            change = RowDifference(which, table.operator, table.name, shard, group, text)
            yield xxhash.xxh3_128_digest(whole), change
