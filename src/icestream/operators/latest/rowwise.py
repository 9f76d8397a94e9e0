"""Filter and map over update streams: row by row, key and time do not change.

Invariants:
1. A filter keeps exactly the rows that meet its condition, in their order
   (`test_oracle_filter_keeps_rows_that_meet_the_condition`).
2. The output of a map has the key and the time of its input row; a map that could change them is
   rejected when it is defined (`test_a_map_may_not_change_the_key`).

Limits: as in any stream, a row that a filter drops does not reach the application, which continues
to show the last row of that key that passed.

References: section 3.2 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.operators.latest.saved_arrays import State
from icestream.operators.latest.update_stream import UpdateStream
from icestream.sql.expressions.compile import Expression, Predicate, Projection, parse
from icestream.sql.expressions.tree import Name
from icestream.state.identities import IdRange


class Stateless:
    """An operator over update streams that keeps nothing."""

    late = 0

    def state(self) -> State:
        return {}

    def taken_over(self, states: Sequence[State], keeps: IdRange) -> State:
        del states, keeps
        return {}

    def recall(self, state: State) -> None:
        pass

    def forget(self, before: Micros) -> None:
        pass


class UpdateFilter(Stateless):
    """Keeps the rows that meet a condition."""

    def __init__(self, stream: UpdateStream, condition: str, *, zone: str = "UTC") -> None:
        self.result = stream
        self._predicate = Predicate.bind(stream.schema, condition, zone=zone)

    def on_batch(self, inputs: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        return self._predicate.filter(inputs[0])


class UpdateMap(Stateless):
    """Computes other columns; key and time do not change."""

    def __init__(self, stream: UpdateStream, columns: Sequence[str], *, zone: str = "UTC") -> None:
        """Bind a list of SQL expressions as in SELECT, `*` for all columns.

        DefinitionError if a key column or the time is missing or changed.
        """
        self._projection = Projection.bind(stream.schema, columns, zone=zone)
        named: dict[str, Expression] = {}
        for text in columns:
            if text.strip() != "*":
                expression = parse(text)
                named[expression.name.lower()] = expression
        made = self._projection.schema
        for name in (*stream.keys, stream.time):
            what = "update key" if name in stream.keys else "time"
            if made.get_field_index(name) < 0:
                msg = f"a map must keep the {what} {name!r}: add it to {list(columns)}"
                raise DefinitionError(msg)
            made_by = named.get(name.lower())
            if made_by is not None and not (
                isinstance(made_by.root, Name) and made_by.root.parts == (name.lower(),)
            ):
                msg = (
                    f"a map may not change the {what}: {name!r} is computed by {made_by.text!r}; "
                    "give the result another name and keep the column as it is"
                )
                raise DefinitionError(msg)
        columns = pa.schema([pa.field(each.name, each.type) for each in made])
        self.result = UpdateStream(columns, stream.keys, stream.time)

    def on_batch(self, inputs: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        made = self._projection.evaluate(inputs[0])
        return pa.RecordBatch.from_arrays(made.columns, schema=self.result.schema)
