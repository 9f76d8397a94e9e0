"""Functions of `compute` and `consolidate`, called with many groups at a time.

Idea: whichever interface a user chose, an operator calls the function once for a batch of groups
and gets columns back. For functions of one row, the loop is here; functions of many groups get
arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.operators.jobs.batches import (
    TupleBatch,
    arrays_of,
    columns_of,
    named_failures,
    rows_of,
)
from icestream.operators.jobs.mapping import several


@dataclass(frozen=True)
class FoldFunction:
    """Folds tuples into the state of their group; may answer each of them at once."""

    function: Callable[..., Any]
    name: str
    state: pa.Schema
    #: the state of a new group
    initial: Mapping[str, Any]
    vectorised: bool
    #: columns of the answers of an eager fold; None: tuples pass through unchanged
    answers: pa.Schema | None = None
    eager: bool = False

    def start(self, count: int) -> pa.RecordBatch:
        """Return the state of new groups."""
        arrays = [
            pa.array([self.initial[field.name]] * count, type=field.type) for field in self.state
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.state)

    def __call__(
        self, old: pa.RecordBatch, tuples: TupleBatch
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Any]:
        """Return the state of each group, the answers, and the tuple of each answer."""
        with named_failures(self.name):
            return (self._many if self.vectorised else self._each)(old, tuples)

    def _many(
        self, old: pa.RecordBatch, tuples: TupleBatch
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Any]:
        made = self.function(arrays_of(old), tuples)
        answers = None
        if self.eager and self.answers is not None:
            made, given = self._pair(made)
            answers = columns_of(given, self.answers, self.name, tuples.rows.num_rows)
        state = columns_of(made, self.state, self.name, len(tuples))
        return state, answers, np.arange(tuples.rows.num_rows)

    def _each(
        self, old: pa.RecordBatch, tuples: TupleBatch
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Any]:
        rows = rows_of(tuples.rows, tuples.ts1, tuples.ts2)
        answered = self.eager and self.answers is not None
        states, answers, origins = [], [], []
        for state, (first, last) in zip(
            old.to_pylist(), pairwise(tuples.starts.tolist()), strict=True
        ):
            current = state
            for number in range(first, last):
                made = self.function(current, rows[number])
                if answered:
                    made, given = self._pair(made)
                    for answer in several(given):
                        answers.append(answer)
                        origins.append(number)
                current = current if made is None else made
            states.append(current)
        found = columns_of(_columns(states, self.state, self.name), self.state, self.name)
        if not answered:
            return found, None, np.arange(len(rows))
        assert self.answers is not None
        emitted = columns_of(_columns(answers, self.answers, self.name), self.answers, self.name)
        return found, emitted, np.array(origins, dtype=np.int64)

    def _pair(self, made: Any) -> tuple[Any, Any]:
        if not isinstance(made, tuple) or len(made) != 2:
            msg = f"{self.name} answers eagerly: it must return a pair (state, answers)"
            raise DefinitionError(msg)
        return made[0], made[1]


@dataclass(frozen=True)
class MergeFunction:
    """Merges the partial results of each group into one row."""

    function: Callable[..., Any]
    name: str
    result: pa.Schema
    vectorised: bool

    def __call__(self, partials: TupleBatch) -> pa.RecordBatch:
        with named_failures(self.name):
            if self.vectorised:
                made = self.function(partials)
            else:
                rows = rows_of(partials.rows, partials.ts1, partials.ts2)
                merged = [
                    self.function(rows[first:last])
                    for first, last in pairwise(partials.starts.tolist())
                ]
                made = _columns(merged, self.result, self.name)
        batch: pa.RecordBatch = columns_of(made, self.result, self.name, len(partials))
        return batch


def _columns(rows: list[Any], schema: pa.Schema, name: str) -> dict[str, list[Any]]:
    """Return rows as columns."""
    try:
        return {column: [row[column] for row in rows] for column in schema.names}
    except (KeyError, TypeError) as error:
        msg = (
            f"{name} must return dicts with {schema.names}; {error} is missing, or it is not a dict"
        )
        raise DefinitionError(msg) from error
