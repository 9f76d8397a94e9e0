"""Changes: what travels between operators over events with lifetimes.

Idea: a stream is a bag of events, each a payload with a lifetime [le, re). A *change* adds an event
to the bag (`diff` > 0) or takes one out again (`diff` < 0), so an end edge that shortens a lifetime
is two changes, and operators pass revisions on like anything else. What a query means is the answer
over the bag that all changes add up to; how they were cut into batches does not show in it.

Invariants:
1. Changes concern instants at or after the watermark: two bags before and after a change agree on
   every instant before it (`test_changes_leave_the_past_alone`).
2. Two lists of changes are equal exactly when they add up to the same bag (`consolidated`).

References: temporal algebra of lifetimes; multisets with signed counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from icestream.core.arrays import Ids, Ints
from icestream.core.times import Micros
from icestream.operators.folding.fold import HI, LO
from icestream.state.groups.spec import Groups, Synopsis

#: columns before the payload: first and last instant of the lifetime, the latter left out; how many
#: such events come (or go); the identity of the group
LE = "__le"
RE = "__re"
DIFF = "__diff"
HEAD = (
    pa.field(LE, pa.int64(), nullable=False),
    pa.field(RE, pa.int64(), nullable=False),
    pa.field(DIFF, pa.int64(), nullable=False),
    pa.field(HI, pa.uint64(), nullable=False),
    pa.field(LO, pa.uint64(), nullable=False),
)


def changes_schema(payload: pa.Schema) -> pa.Schema:
    """Return the columns of changes to events of a payload."""
    return pa.schema([*HEAD, *payload])


def changes_of(
    payload: pa.RecordBatch, le: Ints, re: Ints, diff: Ints, hi: Ids, lo: Ids
) -> pa.RecordBatch:
    """Put changes together."""
    head = [pa.array(part) for part in (le, re, diff, hi, lo)]
    return pa.RecordBatch.from_arrays(
        [*head, *payload.columns], schema=changes_schema(payload.schema)
    )


def payload_of(changes: pa.RecordBatch) -> pa.RecordBatch:
    """Return the payload of changes."""
    return changes.select(changes.schema.names[len(HEAD) :])


def column_of(changes: pa.RecordBatch, name: str) -> Ints:
    """Return one of the columns before the payload as an array."""
    return np.asarray(changes.column(name).to_numpy())


def identities_of(changes: pa.RecordBatch) -> tuple[Ids, Ids]:
    """Return hi and lo of the group of each change."""
    hi, lo = (np.asarray(changes.column(name).to_numpy()) for name in (HI, LO))
    return hi, lo


class LifetimeOperator(Protocol):
    """A stateful operator over changes, for all groups at once.

    It is pure data and code: all state is in the `Groups` it is handed, whose synopses are those it
    asks for. Changes to one group may come in any number of chunks.
    """

    #: what it keeps for each group
    synopses: tuple[Synopsis, ...]
    #: columns of the events it makes
    result: pa.Schema

    def on_changes(
        self, port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Take changes on one of its inputs; yield what changes in its answer.

        `watermark` is the one before the batch. `groups.begin` was called for this chunk.
        """
        ...

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield what a new watermark changes in its answer; most operators have nothing to say."""
        ...


@runtime_checkable
class OrderedPortOperator(Protocol):
    """An operator that keeps less if the changes on one of its ports come before all others."""

    first_port: int


@runtime_checkable
class PromptOperator(Protocol):
    """An operator that says all there is to say about changes at once.

    It need not keep what ends before an instant if it is told that no other change of a group can
    concern an earlier one.
    """

    #: what it keeps for each group
    synopses: tuple[Synopsis, ...]
    #: whether it has nothing to say at a watermark
    is_prompt: bool
    #: whether all it says of a group comes in one batch
    tells_at_once: bool
    #: whether it keeps nothing of a group all of whose events end before that instant
    forgets: bool

    def on_last_changes(
        self,
        port: int,
        changes: pa.RecordBatch,
        groups: Groups,
        watermark: Micros,
        over: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Take all changes to their groups, on any input, that concern instants before `over`."""
        ...
