"""Rewrites chains of records that never expire into one record each.

Idea:
    Groups are processed in ascending order, a batch at a time. In round i the i-th newest records
    of the whole batch are read together, in offset order. The caller merges a group's records, and
    the result goes to a new segment, sorted by group, without back pointer.

Invariants:
    1. Reading the new marker of a group gives `merge` of its chain
       (`test_oracle_compaction_equals_merging_each_chain`, `LogMachine`).
    2. Old segments are not touched: the old markers stay valid until the new ones are committed
       (`test_compaction_leaves_the_old_chains_readable`).

Cost:
    Each record is read once; each block once per round and batch of groups. Memory: the payloads of
    `groups_at_once` chains.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from icestream.state.log.format import NO_MARKER, Record, show_marker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from icestream.state.log.reader import Log
    from icestream.state.log.writer import SegmentWriter


def compact(
    log: Log,
    chains: Mapping[int, int],
    writer: SegmentWriter,
    merge: Callable[[list[Record]], bytes],
    *,
    count_rows: Callable[[bytes], int] = lambda _: 0,
    groups_at_once: int = 1024,
) -> dict[int, int]:
    """Rewrite chains of one synopsis into one record per group.

    Args:
        log: the log with the chains.
        chains: the marker of the newest record of each group.
        writer: a new segment; the caller finishes and commits it.
        merge: returns one payload for the records of a group, given oldest first.
        count_rows: the `rows` of a merged payload.
        groups_at_once: how many chains are held in memory together.

    Returns:
        The new marker of each group; a group whose records have all expired has none.
    """
    compacted: dict[int, int] = {}
    groups = iter(sorted(chains))
    while batch := list(islice(groups, groups_at_once)):
        found = _read_chains(log, {group: chains[group] for group in batch})
        for group in batch:
            records = found[group]
            if not records:
                continue
            payload = merge(records)
            compacted[group] = writer.append(
                payload,
                operator=records[-1].operator,
                synopsis=records[-1].synopsis,
                group=group,
                rows=count_rows(payload),
                expiry=max(record.expiry for record in records),
            )
    return compacted


def _read_chains(log: Log, newest: Mapping[int, int]) -> dict[int, list[Record]]:
    """Return the records of each group, oldest first, their payloads copied out of the blocks."""
    found: dict[int, list[Record]] = {group: [] for group in newest}
    ahead = {marker: group for group, marker in newest.items() if marker != NO_MARKER}
    while ahead:
        following: dict[int, int] = {}
        for record in log.read_many(list(ahead)):
            group = ahead[record.marker]
            _check_belongs(record, group, found[group])
            found[group].append(replace(record, payload=memoryview(bytes(record.payload))))
            if record.back != NO_MARKER:
                following[record.back] = group
        ahead = following
    for records in found.values():
        records.reverse()
    return found


def _check_belongs(record: Record, group: int, newer: Sequence[Record]) -> None:
    """Raise ValueError if a chain leads into another group or synopsis."""
    place = (record.operator, record.synopsis, record.group)
    expected = (newer[0].operator, newer[0].synopsis, group) if newer else (*place[:2], group)
    if place != expected:
        msg = (
            f"the chain of group {group} leads to marker {show_marker(record.marker)}, a record "
            f"of operator {place[0]}, synopsis {place[1]}, group {place[2]}; compact one synopsis "
            "at a time and pass each group its own newest marker"
        )
        raise ValueError(msg)
