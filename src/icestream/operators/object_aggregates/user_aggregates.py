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
2. An event or a state on which a function fails is left out, and the failure is recorded
   (`test_events_on_which_an_aggregate_fails_are_refused`).
3. An aggregate with another version or another name makes another plan
   (`test_a_changed_aggregate_is_another_plan`).

Cost: a call of `lift` per event and of `combine` per event and per state: 1 to 2 million a second.

Limits: `combine` must be associative, and commutative if events arrive out of order. States must be
plain Python values, or of classes that workers can import. Code is not compared: if you change a
function, change its version.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError, InputError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.protocol import ObjectFunction, Types


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

    def __post_init__(self) -> None:
        """Refuse what cannot be called, and answers without a type."""
        for word in ("lift", "combine", "lower"):
            if not callable(given := getattr(self, word)):
                msg = f"{word} of a UserAggregate must be a function; got {given!r}"
                raise DefinitionError(msg)
        if not isinstance(self.result, pa.DataType):
            msg = f"result of a UserAggregate is a type of Arrow, pa.float64(); got {self.result!r}"
            raise DefinitionError(msg)

    @property
    def name(self) -> str:
        title = self.title or f"{self.lift.__module__}.{self.lift.__qualname__}"
        return f"{title} version {self.version}"

    def __repr__(self) -> str:
        """Show the name, which does not change from run to run."""
        return f"UserAggregate({self.name})"


@dataclass(frozen=True)
class UserFunction(ObjectFunction):
    """A user's aggregate as an object function."""

    aggregate: UserAggregate
    #: the column of the answers
    alias: str
    #: position among the rows of the last call, and the error, of what was left out
    failures: list[tuple[int, Exception]] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def of(cls, aggregate: Aggregate, types: Types) -> UserFunction:
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
        return pa.binary()

    @property
    def result(self) -> pa.DataType:
        return self.aggregate.result

    def lift(self, columns: Sequence[pa.Array], times: Ints, bounds: Ints) -> pa.Array:
        """Lift the events of each run and combine their states."""
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        states = [self._tried(at, self.aggregate.lift, *row) for at, row in enumerate(rows)]
        return self._folded(states, bounds)

    def combine(self, states: pa.Array, bounds: Ints) -> pa.Array:
        if len(states) == len(bounds) - 1:
            return states
        return self._folded([_loaded(each) for each in states.to_pylist()], bounds)

    def lower(self, states: pa.Array) -> pa.Array:
        """Return the user's answers; null if there is no state."""
        loaded = [_loaded(each) for each in states.to_pylist()]
        answers = [
            None if each is None else self._tried(at, self.aggregate.lower, each)
            for at, each in enumerate(loaded)
        ]
        try:
            return pa.array(answers, self.aggregate.result)
        except _UNFIT:
            fitting = [self._fitting(at, answer) for at, answer in enumerate(answers)]
            return pa.array(fitting, self.aggregate.result)

    def _fitting(self, at: int, answer: Any) -> Any:
        """Return an answer if it has the declared type."""
        try:
            pa.array([answer], self.aggregate.result)
        except _UNFIT as error:
            msg = (
                f"answers of {self.aggregate.name} (as {self.alias!r}) do not have its type "
                f"{self.aggregate.result}: {error}. Change its lower or its result type"
            )
            self.failures.append((at, InputError(msg)))
            return None
        return answer

    def _tried(self, at: int, function: Callable[..., Any], *given: Any) -> Any:
        """Return what a function of the user returns; None, and a failure, if it fails."""
        try:
            return function(*given)
        except Exception as error:
            msg = f"{self.aggregate.name} failed with {type(error).__name__}: {error}"
            failure = DefinitionError(msg)
            failure.__cause__ = error
            self.failures.append((at, failure))
            return None

    def _folded(self, states: list[Any], bounds: Ints) -> pa.Array:
        merged = []
        for first, last in pairwise(bounds.tolist()):
            whole = None
            for at in range(first, last):
                if whole is None or states[at] is None:
                    whole = states[at] if whole is None else whole
                    continue
                both = self._tried(at, self.aggregate.combine, whole, states[at])
                whole = whole if both is None else both
            merged.append(_dumped(whole))
        return pa.array(merged, pa.binary())


#: errors of values that do not have a type
_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)


def _loaded(payload: bytes | None) -> Any:
    return None if payload is None else pickle.loads(payload)


def _dumped(state: Any) -> bytes | None:
    return None if state is None else pickle.dumps(state, protocol=5)
