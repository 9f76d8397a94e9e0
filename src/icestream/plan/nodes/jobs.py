"""Jobs as users compose them: a graph of map, compute and consolidate, pure data.

Idea: a node yields tuples: key attributes, a value, and a time span. It knows how far its tuples
may lag behind the watermark, and which windows their spans are, so that the next operator knows
when one of its windows is complete and which partials fill it.

Invariant: `lag` and `settles` are bounds
(`test_oracle_no_tuple_comes_after_its_window_was_reported`).

References: Madsen, Zhou, Su (2016), sections 4.1 to 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.operators.jobs.batches import TS1, TS2
from icestream.operators.jobs.consolidate import SpanTiling
from icestream.operators.jobs.folding import FoldFunction, MergeFunction
from icestream.operators.jobs.mapping import MapTuples
from icestream.operators.jobs.spans import Lag, WindowSpans
from icestream.plan.windows.grid import Windows


@dataclass(frozen=True, eq=False)
class JobNode:
    """A source of tuples."""

    name: str
    payload: pa.Schema
    #: attributes that group the tuples
    key: tuple[str, ...] = ()
    inputs: tuple[JobNode, ...] = field(default=(), repr=False)
    lag: Lag = field(default_factory=Lag)
    #: how much later than the last event tuples may end
    reach: Micros = 0
    #: how far the watermark must be past the last event for everything to be emitted
    settles: Micros = 0
    #: windows that the spans of tuples are; None if spans are arbitrary
    windows: tuple[Windows, ...] | None = None
    #: columns that are copies of the input's
    unchanged: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, eq=False)
class TupleSource(JobNode):
    """The events of a source, identified by a tag; each spans one instant."""

    source: int = 0


@dataclass(frozen=True, eq=False)
class MapNode(JobNode):
    """A function of single tuples."""

    change: MapTuples = field(kw_only=True)
    #: attributes by which its tuples may be partitioned; None for all
    partition: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False)
class ComputeNode(JobNode):
    """State by key and window."""

    fold: FoldFunction = field(kw_only=True)
    #: None for one state per key, forever
    spans: WindowSpans | None = field(kw_only=True)
    #: how far the watermark must be past a window's end
    waits: Micros = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class ConsolidateNode(JobNode):
    """Windows by key, made of partials."""

    merge: MergeFunction = field(kw_only=True)
    values: pa.Schema = field(kw_only=True)
    tilings: tuple[SpanTiling, ...] = field(kw_only=True)
    given: frozenset[Micros] = field(kw_only=True)
    waits: Micros = field(kw_only=True)
    #: why the windows are made this way
    because: str = ""


def source_node(payload: pa.Schema, tag: int = 0, name: str = "source") -> TupleSource:
    """Return a node of a job: the tuples of a source."""
    _refuse_names(payload)
    return TupleSource(name, payload, source=tag)


def map_node(
    inputs: tuple[JobNode, ...], change: MapTuples, partition: tuple[str, ...] | None
) -> MapNode:
    """Return a node of a job: the results of a function of each tuple."""
    _refuse_names(change.result)
    names = set(inputs[0].payload.names)
    missing = sorted(set(partition or ()) - names)
    if missing:
        msg = f"{change.name} is partitioned by {missing}; its input has {sorted(names)}"
        raise DefinitionError(msg)
    key = tuple(name for name in _key_of(inputs) if name in change.kept.names)
    return MapNode(
        change.name,
        change.result,
        key,
        inputs,
        _lag_of(inputs),
        max(each.reach for each in inputs),
        max(each.settles for each in inputs),
        _windows_of(inputs),
        change=change,
        partition=partition,
        unchanged=tuple(change.kept.names),
    )


def compute_node(
    inputs: tuple[JobNode, ...], fold: FoldFunction, key: tuple[str, ...], spans: WindowSpans | None
) -> ComputeNode:
    """Return a node of a job: the states of keys and windows, or answers to each tuple."""
    payload = inputs[0].payload
    keys = _fields(payload, key, fold.name)
    lag, reach = _lag_of(inputs), max(each.reach for each in inputs)
    waits = 0 if spans is None else spans.lag(lag)
    longest = 0 if spans is None else spans.longest
    settles = max(*(each.settles for each in inputs), reach + longest + waits)
    if fold.eager:
        if spans is not None and spans.overlaps:
            msg = (
                f"{fold.name} answers each tuple, so a tuple must be in one window: give one "
                "window without overlap, or let it emit complete windows"
            )
            raise DefinitionError(msg)
        result = payload if fold.answers is None else pa.schema([*keys, *fold.answers])
        unchanged = tuple(payload.names) if fold.answers is None else key
        windows = _windows_of(inputs)
    else:
        if spans is None:
            msg = (
                f"{fold.name} never emits its state: give it window=..., follow it by "
                "consolidate(...), or let it answer each tuple with emit='tuple'"
            )
            raise DefinitionError(msg)
        result, unchanged = pa.schema([*keys, *fold.state]), key
        windows = spans.windows
        lag, reach = Lag(waits + longest, waits), reach + longest
    _refuse_names(result)
    _refuse_twice(result, fold.name)
    return ComputeNode(
        fold.name, result, key, inputs, lag, reach, settles, windows,
        fold=fold, spans=spans, waits=waits, unchanged=unchanged,
    )  # fmt: skip


def consolidate_node(
    inputs: tuple[JobNode, ...],
    merge: MergeFunction,
    key: tuple[str, ...],
    values: pa.Schema,
    tilings: tuple[SpanTiling, ...],
    because: str = "",
) -> ConsolidateNode:
    """Return a node of a job: complete windows made of partials."""
    before = _windows_of(inputs)
    assert before is not None
    keys = _fields(inputs[0].payload, key, merge.name)
    waits, reach = _lag_of(inputs).end, max(each.reach for each in inputs)
    wanted = tuple(each.window for each in tilings if each.wanted)
    longest = max(each.range for each in wanted)
    result = pa.schema([*keys, *merge.result])
    _refuse_twice(result, merge.name)
    return ConsolidateNode(
        merge.name, result, key, inputs, Lag(waits + longest, waits), reach + longest,
        max(*(each.settles for each in inputs), reach + longest + waits), wanted,
        merge=merge, values=values, tilings=tilings,
        given=frozenset(each.range for each in before), waits=waits, because=because,
        unchanged=key,
    )  # fmt: skip


def partial_windows(inputs: tuple[JobNode, ...], name: str) -> tuple[Windows, ...]:
    """Return the windows that partials of a job span; raise an error if they span none."""
    found = _windows_of(inputs)
    if found is None:
        msg = (
            f"{name} merges partial results, which compute and consolidate make: put "
            "compute(...) before it"
        )
        raise DefinitionError(msg)
    return found


def _key_of(inputs: tuple[JobNode, ...]) -> tuple[str, ...]:
    return tuple(name for name in inputs[0].key if all(name in each.key for each in inputs))


def _lag_of(inputs: tuple[JobNode, ...]) -> Lag:
    return Lag(max(each.lag.begin for each in inputs), max(each.lag.end for each in inputs))


def _windows_of(inputs: tuple[JobNode, ...]) -> tuple[Windows, ...] | None:
    found = {each.windows for each in inputs}
    return found.pop() if len(found) == 1 else None


def _fields(payload: pa.Schema, key: tuple[str, ...], name: str) -> pa.Schema:
    unknown = [each for each in key if each not in payload.names]
    if unknown or len(set(key)) < len(key):
        msg = f"the key of {name} is {list(key)}; its input has {payload.names}: name some of them"
        raise DefinitionError(msg)
    return pa.schema([payload.field(each) for each in key])


def _refuse_names(payload: pa.Schema) -> None:
    taken = [name for name in payload.names if name in {TS1, TS2} or name.startswith("__")]
    if taken:
        msg = f"{taken} are reserved, or begin with two underscores: rename them"
        raise DefinitionError(msg)


def _refuse_twice(result: pa.Schema, name: str) -> None:
    twice = sorted({each for each in result.names if result.names.count(each) > 1})
    if twice:
        msg = f"{name} has {twice} in its key and in its value: rename one"
        raise DefinitionError(msg)
