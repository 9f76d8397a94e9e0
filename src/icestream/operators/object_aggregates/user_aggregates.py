"""Aggregates that a user writes: three functions in Python, and a version.

Idea: `lift` converts the values of one event to a state, `combine` merges two states, `lower`
converts a state to an answer. States are pickled into the log; the functions are sent with the
query.

    spread = UserAggregate(
        lift=lambda value: (value, value),
        combine=lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
        lower=lambda state: state[1] - state[0],
        result=pa.float64(),
        title="spread",
    )

Invariants:
1. Answers equal those of folding all events of a window
   (`test_oracle_a_user_aggregate_folds_all_events`).
2. An aggregate with another version or another name makes another plan
   (`test_a_changed_aggregate_is_another_plan`).

Cost: a call of `lift` per event and of `combine` per event and per state: 1 to 2 million a second.

Limits: `combine` must be associative, and commutative if events arrive out of order. States must be
plain Python values, or of classes that workers can import. Code is not compared: if you change a
function, change its version.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError, InputError
from icestream.operators.aggregates.aggregate import Aggregate


@dataclass(frozen=True)
class UserAggregate:
    """An aggregate function in Python.

    Examples:
        >>> import pyarrow as pa
        >>> spread = ice.UserAggregate(
        ...     lift=lambda x: (x, x),
        ...     combine=lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
        ...     lower=lambda state: state[1] - state[0],
        ...     result=pa.float64(),
        ...     title="spread",
        ... )
        >>> spread.name
        'spread version 1'
    """

    #: returns the state of one event, given its input values, which may be None; None for no state
    lift: Callable[..., Any]
    #: merges two states
    combine: Callable[[Any, Any], Any]
    #: returns the answer of a state
    lower: Callable[[Any], Any]
    #: the type of the answers
    result: pa.DataType
    #: another version makes another plan: change it whenever a function changes what it computes
    version: str = "1"
    #: its name in plans; the name of `lift` if it is empty
    title: str = ""

    @property
    def name(self) -> str:
        """Return the name of this aggregate in plans."""
        title = self.title or f"{self.lift.__module__}.{self.lift.__qualname__}"
        return f"{title} version {self.version}"

    def __repr__(self) -> str:
        """Show the name, which does not change from run to run."""
        return f"UserAggregate({self.name})"


@dataclass(frozen=True)
class UserFunction:
    """A user's aggregate as an object function."""

    aggregate: UserAggregate
    #: the column of the answers
    alias: str

    @classmethod
    def of(cls, aggregate: Aggregate, types: Mapping[str, pa.DataType]) -> UserFunction:
        """Take any inputs; the parameter is the user's aggregate."""
        given = aggregate.parameters[0] if aggregate.parameters else None
        if not isinstance(given, UserAggregate):
            msg = (
                f"{aggregate.alias!r} needs a UserAggregate, got {given!r}: pass one with lift, "
                "combine, lower and a result type"
            )
            raise DefinitionError(msg)
        return cls(given, aggregate.alias)

    @property
    def state(self) -> pa.DataType:
        """Return the type of a pickled state, null for none."""
        return pa.binary()

    @property
    def result(self) -> pa.DataType:
        """Return the type that the user declared."""
        return self.aggregate.result

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        """Lift the events of each run and combine their states."""
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        states = [self.aggregate.lift(*row) for row in rows]
        return self._folded(states, bounds)

    def combine(self, states: pa.Array, bounds: Ints) -> pa.Array:
        """Combine the states of each run."""
        if len(states) == len(bounds) - 1:
            return states
        return self._folded([_loaded(each) for each in states.to_pylist()], bounds)

    def lower(self, states: pa.Array) -> pa.Array:
        """Return the user's answers; null if there is no state."""
        loaded = [_loaded(each) for each in states.to_pylist()]
        answers = [None if each is None else self.aggregate.lower(each) for each in loaded]
        try:
            return pa.array(answers, self.aggregate.result)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            msg = (
                f"answers of {self.aggregate.name} (as {self.alias!r}) do not have its type "
                f"{self.aggregate.result}: {error}. Change its lower or its result type"
            )
            raise InputError(msg) from error

    def _folded(self, states: list[Any], bounds: Ints) -> pa.Array:
        merged = []
        for first, last in pairwise(bounds.tolist()):
            some = [each for each in states[first:last] if each is not None]
            merged.append(_dumped(reduce(self.aggregate.combine, some)) if some else None)
        return pa.array(merged, pa.binary())


def _loaded(payload: bytes | None) -> Any:
    return None if payload is None else pickle.loads(payload)


def _dumped(state: Any) -> bytes | None:
    return None if state is None else pickle.dumps(state, protocol=5)
