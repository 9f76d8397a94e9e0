"""Aggregates over lifetimes: at each instant, over the events of a group that are alive then.

Idea: the answer is a step function over time, emitted as events that last as long as their value.
Answers that are emitted once, when they are final, are computed from the stored events then
(`final_aggregate`). If answers are revised, invertible fields are stored as edges
(`invertible_aggregate`); all others need the events that are alive (`non_invertible_aggregate`).
Float sums are invertible too, because they are exact (`lift`), so a group costs a few words instead
of its history.

Invariants: those of `final_aggregate`, `invertible_aggregate` and `non_invertible_aggregate`.

Limits: functions whose state is not words (percentiles, collections) are computed again from the
events of a group whenever one changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.lifetimes.answers import LifetimeAggregate, SpanAnswers
from icestream.operators.lifetimes.final_aggregate import FinalAggregate
from icestream.operators.lifetimes.invertible_aggregate import InvertibleAggregate
from icestream.operators.lifetimes.non_invertible_aggregate import NonInvertibleAggregate

#: `changes` emits revisions at once, `final` only answers that no change can revise any more
Mode = Literal["changes", "final"]


def lifetime_aggregate(
    payload: pa.Schema,
    aggregates: Sequence[Aggregate],
    keys: Sequence[str] = (),
    *,
    mode: Mode = "changes",
    grows: bool = False,
    left: Sequence[str] | None = None,
) -> LifetimeAggregate:
    """Aggregate events of a payload over their lifetimes.

    `keys` are columns with one value per group; they precede the aggregates in the output. An input
    that `grows` never retracts an event. With `left`, the events are those of both sides of a join,
    with these columns on the left, and the answers are over their pairs.
    """
    names = [*keys, *(each.alias for each in aggregates)]
    if not aggregates or len(set(names)) < len(names):
        msg = f"the columns of an aggregate need distinct names, got {names}: rename some"
        raise DefinitionError(msg)
    if mode not in ("changes", "final"):
        msg = f"unknown mode {mode!r}: choose 'changes' or 'final'"
        raise DefinitionError(msg)
    answers = SpanAnswers(payload, aggregates, keys, grows=grows or mode == "changes", left=left)
    if mode == "final":
        return FinalAggregate(answers, grows=grows)
    if answers.inverts:
        return InvertibleAggregate(answers)
    return NonInvertibleAggregate(answers, grows=grows)


def only_final(aggregate: LifetimeAggregate, *, grows: bool) -> LifetimeAggregate:
    """Return the same aggregate over lifetimes in mode `final`."""
    return _again(aggregate, mode="final", grows=grows)


def of_growing(aggregate: LifetimeAggregate) -> LifetimeAggregate:
    """Return the same aggregate of events that are never retracted, if that saves anything."""
    if isinstance(aggregate, NonInvertibleAggregate) and not aggregate.answers.objects.results:
        return _again(aggregate, mode="changes", grows=True)
    return aggregate


def _again(aggregate: LifetimeAggregate, *, mode: Mode, grows: bool) -> LifetimeAggregate:
    made = aggregate.answers
    return lifetime_aggregate(
        made.payload, made.aggregates, made.keys.names, mode=mode, grows=grows, left=made.left
    )
