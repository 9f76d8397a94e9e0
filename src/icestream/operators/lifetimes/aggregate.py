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

from collections.abc import Iterator, Sequence
from typing import Literal

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.lifetimes.changes import LifetimeOperator, PromptOperator
from icestream.operators.lifetimes.final_aggregate import COUNTED, FinalAggregate
from icestream.operators.lifetimes.invertible_aggregate import InvertibleAggregate
from icestream.operators.lifetimes.lift import Lifting
from icestream.operators.lifetimes.non_invertible_aggregate import NonInvertibleAggregate
from icestream.operators.lifetimes.object_spans import ObjectSpans
from icestream.state.groups.spec import Groups

#: `changes` emits revisions at once, `final` only answers that no change can revise any more
Mode = Literal["changes", "final"]


class LifetimeAggregate:
    """A grouped aggregate: its output has one event for each instant and group."""

    emits_at_once = True

    def __init__(
        self,
        payload: pa.Schema,
        aggregates: Sequence[Aggregate],
        keys: Sequence[str] = (),
        *,
        mode: Mode = "changes",
        empty: bool = False,
        grows: bool = False,
    ) -> None:
        """Aggregate events of a payload.

        `keys` are columns with one value per group; they precede the aggregates in the output. With
        `empty`, a group has an answer, for example a count of 0, at every instant from its first
        event on. An input that `grows` never retracts an event.
        """
        names = [*keys, *(each.alias for each in aggregates)]
        if not aggregates or len(set(names)) < len(names):
            msg = f"the columns of an aggregate need distinct names, got {names}: rename some"
            raise DefinitionError(msg)
        if mode not in ("changes", "final"):
            msg = f"unknown mode {mode!r}: choose 'changes' or 'final'"
            raise DefinitionError(msg)
        objects = ObjectSpans(payload, aggregates, grows=grows or mode == "changes")
        in_words = [each for each in aggregates if each.alias not in objects.results]
        lifting = Lifting(payload, in_words or [COUNTED])
        inverts = lifting.inverts and not objects.results
        #: whether an answer depends on when events began
        self.depends_on_order = objects.depends_on_order or lifting.needs_order
        if empty and (mode == "final" or not inverts):
            msg = (
                "answers over no events need invertible aggregates, such as counts and sums, "
                "and a mode that revises them"
            )
            raise DefinitionError(msg)
        self._made_of = payload, tuple(aggregates), tuple(keys)
        self._kept: LifetimeOperator
        if mode == "final":
            self._kept = FinalAggregate(payload, aggregates, tuple(keys), grows=grows)
        elif inverts:
            self._kept = InvertibleAggregate(payload, lifting, tuple(keys), empty=empty)
        else:
            self._kept = NonInvertibleAggregate(
                payload, aggregates, lifting, objects, tuple(keys), grows=grows
            )
        self.synopses = self._kept.synopses
        self.result = self._kept.result

    def emitted_once(self, *, grows: bool) -> LifetimeAggregate:
        """Return the same aggregate in mode `final`."""
        return LifetimeAggregate(*self._made_of, mode="final", grows=grows)

    def growing(self) -> LifetimeAggregate:
        """Return the same of an input that never retracts an event; itself if that saves nothing."""
        if not isinstance(self._kept, NonInvertibleAggregate) or not self._kept.in_words:
            return self
        return LifetimeAggregate(*self._made_of, grows=True)

    def check_retractions(self) -> None:
        """Refuse functions that need events that are never retracted."""
        ObjectSpans(*self._made_of[:2], grows=False)

    def on_changes(
        self, port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Iterator[pa.RecordBatch]:
        """Yield how the answers of the touched groups change."""
        return self._kept.on_changes(port, changes, groups, watermark)

    @property
    def is_prompt(self) -> bool:
        """Return whether it emits nothing at a watermark."""
        return isinstance(self._kept, PromptOperator) and self._kept.is_prompt

    @property
    def forgets(self) -> bool:
        """Return whether it stores nothing for groups whose events have all ended."""
        return isinstance(self._kept, PromptOperator) and self._kept.forgets

    def on_last_changes(
        self,
        port: int,
        changes: pa.RecordBatch,
        groups: Groups,
        watermark: Micros,
        over: Micros,
    ) -> Iterator[pa.RecordBatch]:
        """Yield how answers change; store nothing for groups that end by the instant `over`."""
        if isinstance(self._kept, PromptOperator):
            return self._kept.on_last_changes(port, changes, groups, watermark, over)
        return self._kept.on_changes(port, changes, groups, watermark)

    def on_watermark(self, groups: Groups, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Yield the answers that became final, in mode `final`."""
        return self._kept.on_watermark(groups, watermark)
