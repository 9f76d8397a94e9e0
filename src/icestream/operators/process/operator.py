"""The operator that runs user code: changes in, changes out, state by group.

Idea: a processor, written for one group or for many, declares its state; each variable is a
synopsis in the same store, log and budget as all other state. Input is sorted by group and time and
passed on in portions that fit into memory; timers fire when the watermark moves.

Invariants:
1. Answers are those of a plain simulation with a dictionary for each group, for both interfaces
   (`test_oracle_per_group_state_is_a_dictionary`, `test_parity_both_forms_give_equal_results`).
2. Retractions are rejected unless the processor declares that it handles them
   (`test_changes_that_take_out_are_refused`).

Cost: one sort of each chunk, plus the cost of the interface.

Limits: rows of one group in different chunks of a batch are passed on in the order of the chunks,
each in time order. A watermark at the end of time fires all timers, so a processor that always sets
another timer must not receive one.

References: user-defined operators with typed state and timers; delta serialisation of their state.
"""

from __future__ import annotations

import pyarrow as pa

from icestream.core.arrays import Slots
from icestream.core.errors import DefinitionError, InputError
from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.bad_rows import ROW_ERRORS, BadRows, Made
from icestream.operators.lifetimes.changes import DIFF, LE, LifetimeOperator, column_of
from icestream.operators.process.column_run import VectorisedRun
from icestream.operators.process.group_run import PerGroupRun
from icestream.operators.process.grouping import GroupPortion, portions_of
from icestream.operators.process.per_group import StatefulProcessor
from icestream.operators.process.timers import DELETE, TimerTable, timer_synopses
from icestream.operators.process.values import shown
from icestream.operators.process.vectorised import VectorisedProcessor
from icestream.sql.ddl import schema_of
from icestream.state.groups.spec import Groups

Processor = StatefulProcessor | VectorisedProcessor


class UserDefined(LifetimeOperator):
    """Runs a processor."""

    def __init__(
        self,
        processor: Processor,
        keys: pa.Schema | str,
        payload: pa.Schema | str,
        result: pa.Schema | str | None = None,
        *,
        name: str | None = None,
    ) -> None:
        """Take a processor and the columns of keys, input and output.

        Keys are columns of the input. Without `result`, the processor's own `output` defines the
        columns.
        """
        given: object = processor
        if not isinstance(given, StatefulProcessor | VectorisedProcessor):
            msg = (
                f"process takes a StatefulProcessor or a VectorisedProcessor, made with (): "
                f"process(Visits()); got {processor!r}"
            )
            raise DefinitionError(msg)
        self.name = name or type(processor).__name__
        declared = result if result is not None else processor.output
        if declared is None:
            msg = f"{self.name} does not declare its output columns: give it an output"
            raise DefinitionError(msg)
        self.result = schema_of(declared)
        self._keys = schema_of(keys)
        self._payload = schema_of(payload)
        self._check_keys()
        self._handles_changes = processor.handles_changes
        run = PerGroupRun if isinstance(processor, StatefulProcessor) else VectorisedRun
        self._run: PerGroupRun | VectorisedRun
        self._run = run(processor, self.name, self._keys, self.result)  # type: ignore[arg-type]
        self.synopses = tuple(kept.synopsis(name) for name, kept in self._run.declared.items())
        self._first_timer = len(self.synopses)
        if self._run.has_timers:
            self.synopses += timer_synopses(self._keys)

    def on_changes(
        self, port: int, changes: pa.RecordBatch, groups: Groups, watermark: Micros
    ) -> Made:
        """Pass rows to the processor."""
        retracted = column_of(changes, DIFF) < 0
        if retracted.any() and not self._handles_changes:
            yield self._refused(changes.filter(pa.array(retracted)))
            changes = changes.filter(pa.array(~retracted))
        for portion in portions_of(groups, changes, expand=not self._handles_changes):
            yield from self._handled(groups, portion, watermark)

    def _handled(self, groups: Groups, portion: GroupPortion, watermark: Micros) -> Made:
        """Yield what the processor makes of rows, and those on which it fails."""
        keys, made = portion.keys(self._keys), list[pa.RecordBatch]()
        try:
            made += self._run.on_rows(groups, portion, keys, watermark)
        except ROW_ERRORS as error:
            halves = portion.halves()
            yield BadRows(self.name, error, None if halves else portion.events)
            for half in halves:
                yield from self._handled(groups, half, watermark)
        yield from made

    def on_watermark(self, groups: Groups, watermark: Micros) -> Made:
        """Fire timers until none is due; the store may return some groups only in a later call."""
        if not self._run.has_timers:
            return
        while (due := groups.due(watermark)).size:
            for slots in groups.portions(due):
                keys = groups.read(self._first_timer + 1, slots).rows
                yield from self._fired(groups, slots, keys, watermark)
            # rows are not expired by this call: output of timers may still need them
            groups.begin(MINUS_INFINITY)

    def _fired(self, groups: Groups, slots: Slots, keys: pa.RecordBatch, watermark: Micros) -> Made:
        """Fire the timers of groups; those of a group on which the processor fails are deleted."""
        made = list[pa.RecordBatch]()
        try:
            made += self._run.on_timers(groups, slots, keys, watermark)
        except ROW_ERRORS as error:
            yield BadRows(self.name, error, None if len(slots) > 1 else keys)
            if len(slots) > 1:
                half = len(slots) // 2
                yield from self._fired(groups, slots[:half], keys.slice(0, half), watermark)
                yield from self._fired(groups, slots[half:], keys.slice(half), watermark)
                return
            timers = TimerTable(groups, self._first_timer, slots, MINUS_INFINITY)
            owners, at = timers.pending()
            timers.note(owners[at <= watermark], at[at <= watermark], DELETE)
            timers.flush(keys)
        yield from made

    def _check_keys(self) -> None:
        columns = self._payload
        for field in self._keys:
            place = columns.get_field_index(field.name)
            if place < 0 or columns.field(place).type != field.type:
                msg = (
                    f"{self.name}: keys must be columns of the input; '{field.name} {field.type}' "
                    f"is not among ({shown(columns)})"
                )
                raise DefinitionError(msg)

    def _refused(self, retractions: pa.RecordBatch) -> BadRows:
        msg = (
            f"{self.name} does not accept retractions, such as the one at "
            f"{column_of(retractions, LE)[0]}: set handles_changes and read the diffs, or put the "
            "operator before the step that revises its answers"
        )
        return BadRows(self.name, InputError(msg), retractions)
