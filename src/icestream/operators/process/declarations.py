"""What a user declares as state of each group: values, lists, maps, tables and objects.

Idea: a declaration is pure data; it defines the columns of its synopsis. Each may have a time to
live, in event time, counted from the time of the write. The synopsis then has a column with the
instant at which a row expires, and the store drops such rows when the watermark reaches it.

Invariants:
1. Nothing is pickled unless the user asks for `pickled`
   (`test_nothing_is_pickled_unless_asked_for`).
2. Rows disappear when the watermark has reached the time of their write plus the time to live, not
   before (`test_oracle_what_outlives_its_time_is_gone`).

Limits: keys of maps have simple types, so that Python and the log agree on which keys are equal.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import parse_interval
from icestream.operators.process.grouping import kinds_of_puts, last_puts
from icestream.sql.ddl import schema_of
from icestream.state.groups.spec import GroupRows, Synopsis, Wear
from icestream.state.keys import KeyCodec

#: column with the instant at which a row expires
EXPIRY = "__expiry"
#: column of maps: whether the row removes its key
GONE = "__gone"
#: columns of objects: whether the bytes are a delta to the object before, and the bytes
IS_DELTA = "__is_delta"
DATA = "data"


class Declared(ABC):
    """A state variable: its columns and its time to live."""

    #: the user's word for this kind
    kind: ClassVar[str]
    #: microseconds of event time, or text such as "1 hour"
    ttl: Micros | str | None

    @property
    @abstractmethod
    def columns(self) -> pa.Schema:
        """Return the columns of its rows, without the expiry."""

    @property
    def lifetime(self) -> Micros | None:
        """Return how long a row lives, in microseconds of event time, or None for ever."""
        return None if self.ttl is None else parse_interval(self.ttl)

    @property
    def stored(self) -> pa.Schema:
        """Return the columns of its rows, with the expiry if they have one."""
        expiry = pa.field(EXPIRY, pa.int64(), nullable=False)
        return self.columns if self.lifetime is None else self.columns.append(expiry)

    def synopsis(self, name: str) -> Synopsis:
        """Return the synopsis that stores it."""
        expiry = None if self.lifetime is None else EXPIRY
        return Synopsis(name, self.stored, expiry=expiry, wear=self.wear)

    @property
    def wear(self) -> Wear | None:
        """Return how appended rows make others superfluous, if they do."""
        return None

    def check(self, name: str) -> None:
        """Reject declarations that cannot work; `name` is the variable's."""
        if not name.isidentifier() or name.startswith("__"):
            msg = f"{name!r} cannot name a state variable: choose a word such as 'seen'"
            raise DefinitionError(msg)
        if self.lifetime is not None and self.lifetime <= 0:
            msg = f"state {name!r} has a ttl of {self.lifetime} us: give a longer ttl, or none"
            raise DefinitionError(msg)
        names = self.columns.names
        if len(set(names)) < len(names):
            msg = f"state {name!r} has two columns with the same name in {names}: rename one"
            raise DefinitionError(msg)


@dataclass(frozen=True)
class _Rows(Declared):
    """A variable with one schema."""

    schema: pa.Schema | str
    ttl: Micros | str | None = None

    @cached_property
    def columns(self) -> pa.Schema:
        return schema_of(self.schema)


@dataclass(frozen=True)
class ValueState(_Rows):
    """At most one row for each group.

    Examples:
        >>> seen = ice.ValueState("visits long, last timestamp")
        >>> seen.columns.names
        ['visits', 'last']
    """

    kind = "value"


@dataclass(frozen=True)
class ListState(_Rows):
    """Rows in the order in which they were appended.

    Examples:
        >>> ice.ListState("price double").columns.names
        ['price']
    """

    kind = "list"


@dataclass(frozen=True)
class TableState(_Rows):
    """Rows as Arrow batches, in order; rows can be deleted by a condition.

    Examples:
        >>> orders = ice.TableState("number long, price double")
    """

    kind = "table"


@dataclass(frozen=True)
class MapState(Declared):
    """Rows found by a key: a put replaces the row that was there.

    Examples:
        >>> clicks = ice.MapState("page string", "clicks long")
    """

    key: pa.Schema | str
    value: pa.Schema | str
    #: a write never shortens a key's life
    ttl: Micros | str | None = None

    kind = "map"

    @cached_property
    def keys(self) -> pa.Schema:
        return schema_of(self.key)

    @cached_property
    def values(self) -> pa.Schema:
        """Return the columns of the value; they may be null, as in rows that remove a key."""
        return pa.schema([field.with_nullable(True) for field in schema_of(self.value)])

    @cached_property
    def columns(self) -> pa.Schema:
        """Return the columns of key, value and whether the row removes its key."""
        return pa.schema([*self.keys, *self.values, pa.field(GONE, pa.bool_(), nullable=False)])

    @property
    def wear(self) -> Wear:
        """Return how a put makes another one superfluous."""
        codec = KeyCodec(self.keys)
        return Wear(
            partial(last_puts, keys=codec, gone=GONE),
            kinds=partial(kinds_of_puts, keys=codec),
        )

    def check(self, name: str) -> None:
        """Reject key types that cannot be looked up."""
        super().check(name)
        KeyCodec(self.keys)
        nested = [field.name for field in self.keys if pa.types.is_nested(field.type)]
        if nested or not len(self.keys):
            msg = f"map state {name!r} needs keys of simple types; {nested} are not: split them"
            raise DefinitionError(msg)


@dataclass(frozen=True)
class ObjectState(Declared):
    """A Python object that the user serialises to bytes, optionally with deltas.

    An object is written when it is updated, never because it was read. With `delta` and `apply`,
    an update appends only what changed; the whole object is written again when its deltas have
    grown as large as the object.

    Examples:
        >>> import json
        >>> model = ice.ObjectState(
        ...     lambda model: json.dumps(model).encode(), json.loads, initial=dict
        ... )
    """

    #: converts an object to bytes, and bytes to a new object
    serialise: Callable[[Any], bytes]
    deserialise: Callable[[bytes], Any]
    #: returns the delta between an old and a new object, or None if there is no short one
    delta: Callable[[Any, Any], bytes | None] | None = None
    #: applies a delta to the old object; it may modify and return its argument
    apply: Callable[[Any, bytes], Any] | None = None
    #: creates the object of a group that has none; without it that is None
    initial: Callable[[], Any] | None = None
    ttl: Micros | str | None = None

    kind = "object"

    @property
    def columns(self) -> pa.Schema:
        """Return the columns of the bytes and of whether they are a delta."""
        return pa.schema(
            [
                pa.field(IS_DELTA, pa.bool_(), nullable=False),
                pa.field(DATA, pa.binary(), nullable=False),
            ]
        )

    @property
    def wear(self) -> Wear | None:
        """Return how deltas are folded into their object."""
        return None if self.apply is None else Wear(self._folded)

    def rebuilt(self, stored: Iterable[tuple[bool, bytes]], nothing: Any) -> Any:
        """Return the object that bytes and deltas add up to; `nothing` if there are none."""
        found = nothing
        for is_delta, data in stored:
            if not is_delta:
                found = self.deserialise(data)
            elif self.apply is not None:
                start = self.initial
                old = start() if found is nothing and start is not None else found
                found = self.apply(old, data)
        return found

    def _folded(self, found: GroupRows) -> GroupRows:
        owners, starts = np.unique(found.owners, return_index=True)
        flags, data = (found.rows.column(name).to_pylist() for name in (IS_DELTA, DATA))
        stored = list(zip(flags, data, strict=True))
        ends = [*starts[1:].tolist(), len(stored)]
        whole = [
            self.serialise(self.rebuilt(stored[first:last], object()))
            for first, last in zip(starts.tolist(), ends, strict=True)
        ]
        columns = [pa.array([False] * len(whole)), pa.array(whole, type=pa.binary())]
        return GroupRows(owners, pa.RecordBatch.from_arrays(columns, schema=self.columns))

    def check(self, name: str) -> None:
        """Reject deltas that could not be read back, or that would outlive their object."""
        super().check(name)
        if self.delta is not None and self.apply is None:
            msg = f"object state {name!r} has a delta but no apply: give both"
            raise DefinitionError(msg)
        if self.ttl is not None and self.apply is not None:
            msg = f"object state {name!r} has deltas and a ttl: choose one, or set a timer"
            raise DefinitionError(msg)


def undefined(processor: object, method: str) -> DefinitionError:
    """Return the error for a method that a declared processor needs but does not define."""
    return DefinitionError(f"{type(processor).__name__} needs the method {method}: define it")


def pickled(*, initial: Callable[[], Any] | None = None) -> ObjectState:
    """Declare an object as pickled state: for trusted checkpoints, classes that never change.

    Examples:
        >>> model = ice.pickled()
    """
    return ObjectState(pickle.dumps, pickle.loads, initial=initial)
