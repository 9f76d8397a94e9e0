"""Streams of tuples that are composed operator by operator.

Idea: users and tests write the same graph; this module creates its nodes, with one method for each
operator, and refuses what cannot work. The API has the same methods, and adds where tuples come
from and where they go.

References: Madsen, Zhou, Su (2016), sections 4.1, 4.2 and figure 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import parse_interval
from icestream.operators.jobs.folding import FoldFunction, MergeFunction
from icestream.operators.jobs.inference import initial_of, map_columns, state_columns
from icestream.operators.jobs.mapping import MapTuples
from icestream.operators.jobs.spans import Spanning, WindowSpans
from icestream.plan.jobs.windows import JobStatistics, chosen_windows, tilings_of
from icestream.plan.nodes.jobs import (
    JobNode,
    compute_node,
    consolidate_node,
    map_node,
    partial_windows,
)
from icestream.plan.windows.grid import Windows
from icestream.sql.ddl import schema_of

Schema: TypeAlias = pa.Schema | str
Function = Callable[..., Any]

#: when compute emits something
EMITS: tuple[str, ...] = ("window", "tuple")


@dataclass(frozen=True)
class JobWindow:
    """Windows by start, length and frequency, and the rule for tuples that cross a border.

    Examples:
        >>> ice.JobWindow("1 hour", every="10 minutes").windows.slide
        600000000
    """

    length: str | Micros
    every: str | Micros | None = None
    start: str | Micros = 0
    spanning: Spanning = "begin"

    @property
    def windows(self) -> Windows:
        length = parse_interval(self.length)
        every = length if self.every is None else parse_interval(self.every)
        start = parse_interval(self.start)
        return Windows(length, every, start % every if every > 0 else start)


Window = JobWindow | str | Micros


@dataclass(frozen=True)
class _Open:
    """A compute whose windows a later consolidate determines."""

    inputs: tuple[JobNode, ...]
    fold: FoldFunction
    key: tuple[str, ...]


@dataclass(frozen=True)
class JobStream:
    """Tuples of one or more operators or sources, with a method for each kind of operator."""

    _nodes: tuple[JobNode, ...]
    #: a compute whose windows are not yet known
    _open: _Open | None = None

    def map(
        self,
        function: Function,
        *,
        output: Schema | None = None,
        keeps: Sequence[str] | None = None,
        partition: Sequence[str] | None = None,
        vectorised: bool = False,
        name: str | None = None,
    ) -> Self:
        """Turn each tuple into any number of others; without state.

        Args:
            function: takes a tuple as a dict, with `ts1` and `ts2` in microseconds, and returns a
                dict of new attributes, several of them, or None. With `vectorised` it takes an
                Arrow batch of tuples and returns arrays by name, one value for each tuple, or with
                an array `row` that contains the tuple of each value. It may also return `ts1` and
                `ts2`: a map may move tuples to later times.
            output: the new attributes, as `"rate double"` or an Arrow schema; by default found out
                by trying.
            keeps: attributes that are copied; by default all that the function does not make. The
                job can be partitioned by them, because copies are known to be unchanged.
            partition: attributes by which tuples may be partitioned; by default all.
            vectorised: whether the function takes many tuples at once.
            name: the name of the operator; by default that of the function.

        Examples:
            >>> ice.job(calls).map(
            ...     lambda call: {"minutes": call["busyTime"] / 60}, output="minutes double"
            ... ).columns[-1]
            'minutes'
        """
        inputs, name = self._inputs, name or _name_of(function)
        payload = inputs[0].payload
        kept = payload.names if keeps is None else list(keeps)
        unknown = sorted(set(kept) - set(payload.names))
        if unknown:
            msg = f"{name} keeps {unknown}; its input has {payload.names}"
            raise DefinitionError(msg)
        if output is None:
            made = map_columns(function, name, payload, vectorised=vectorised)
        else:
            made = schema_of(output) if output else pa.schema([])
        anew = set(made.names)
        if keeps is not None and anew & set(kept):
            msg = f"{name} both keeps and makes {sorted(anew & set(kept))}: choose one"
            raise DefinitionError(msg)
        stay = pa.schema([payload.field(each) for each in kept if each not in anew])
        change = MapTuples(function, name, made, stay, vectorised)
        chosen = None if partition is None else tuple(partition)
        return replace(self, _nodes=(map_node(inputs, change, chosen),), _open=None)

    def compute(
        self,
        function: Function,
        *,
        key: str | Sequence[str],
        state: Schema | None = None,
        initial: Mapping[str, Any] | None = None,
        window: Window | Sequence[Window] | None = None,
        emit: Literal["window", "tuple"] = "window",
        output: Schema | None = None,
        vectorised: bool = False,
        name: str | None = None,
    ) -> Self:
        """Build the state of each key and window from its tuples.

        A window is emitted when it is complete: a tuple with the key, the state, and the window as
        its time span. Without `window` the operator must be followed by `consolidate`, which
        determines the windows.

        Args:
            function: takes the state and a tuple, both dicts, and returns the new state, or changes
                the given state. With `vectorised` it takes the states of many keys and windows as
                arrays by name, and their tuples (`TupleBatch`), and returns arrays.
            key: attributes that group the tuples; `()` puts all tuples into one group.
            state: columns of the state, as `"n long, total double"`; by default those of `initial`.
            initial: the state before the first tuple; by default zeros.
            window: a length such as `"10 minutes"`, a `JobWindow`, or several of these.
            emit: `window` emits complete windows; `tuple` answers each tuple at once: the function
                then returns a pair of state and answer.
            output: attributes of answers besides the key; by default tuples pass unchanged.
            vectorised: whether the function takes many keys at once.
            name: the name of the operator; by default that of the function.

        Examples:
            >>> ice.job(calls).compute(
            ...     lambda state, call: {"n": state["n"] + 1},
            ...     key="agent",
            ...     initial={"n": 0},
            ...     window="1 hour",
            ... ).columns
            ['agent', 'n']
        """
        inputs, name = self._inputs, name or _name_of(function)
        if state is None and not initial:
            msg = f"the state of {name} is not defined: give state='n long' or initial={{...}}"
            raise DefinitionError(msg)
        columns = state_columns(initial or {}) if state is None else schema_of(state)
        if emit not in EMITS:
            msg = f"emit must be 'window' or 'tuple'; got {emit!r}"
            raise DefinitionError(msg)
        eager = emit == "tuple"
        if output is not None and not eager:
            msg = f"{name} emits its state; output=... is for emit='tuple'. Use map(...) after it"
            raise DefinitionError(msg)
        answers = None if output is None else schema_of(output)
        start = initial_of(columns, initial)
        fold = FoldFunction(function, name, columns, start, vectorised, answers, eager)
        names = _names(key)
        if window is None and not eager:
            return replace(self, _nodes=inputs, _open=_Open(inputs, fold, names))
        spans = None if window is None else _spans(window)
        return replace(self, _nodes=(compute_node(inputs, fold, names, spans),), _open=None)

    def consolidate(
        self,
        function: Function,
        *,
        windows: Window | Sequence[Window],
        key: str | Sequence[str] | None = None,
        output: Schema | None = None,
        sharing: str = "auto",
        statistics: JobStatistics | None = None,
        vectorised: bool = False,
        name: str | None = None,
    ) -> Self:
        """Merge partial results into complete windows.

        Args:
            function: takes the partial results of a key and window, a list of dicts, and returns
                one. With `vectorised` it takes those of many as a `TupleBatch` and returns arrays
                with a value for each key and window.
            windows: the windows to make: lengths or `JobWindow`s.
            key: attributes that group the partials, by default all of their own key; `()` puts all
                partials into one group.
            output: what the function returns, if it is not a partial result again.
            sharing: `partials` lets windows share partial results, `each` computes each separately;
                `auto` chooses by cost.
            statistics: measurements of the tuples, for that choice.
            vectorised: whether the function takes many keys at once.
            name: the name of the operator; by default that of the function.

        Examples:
            >>> counted = ice.job(calls).compute(
            ...     lambda state, call: {"n": state["n"] + 1}, key="agent", initial={"n": 0}
            ... )
            >>> counted.consolidate(
            ...     lambda parts: {"n": sum(part["n"] for part in parts)},
            ...     windows=["1 hour", "1 day"],
            ... ).columns
            ['agent', 'n']
        """
        name, known = name or _name_of(function), statistics or JobStatistics()
        spans = _spans(windows)
        if self._open is not None:
            state = self._open.fold.state
            result = state if output is None else schema_of(output)
            chosen = chosen_windows(
                spans.windows,
                known,
                sharing=sharing,
                composable=result.equals(state),
                divisible=spans.spanning in {"begin", "end"},
            )
            folded = WindowSpans(chosen.folded, spans.spanning)
            before = compute_node(self._open.inputs, self._open.fold, self._open.key, folded)
            inputs: tuple[JobNode, ...] = (before,)
            tilings, because = chosen.tilings, chosen.because
        else:
            inputs = self._inputs
            given = partial_windows(inputs, name)
            because = "windows of partials that are given"
        old = inputs[0].key
        names = old if key is None else _names(key)
        values = pa.schema([each for each in inputs[0].payload if each.name not in {*old, *names}])
        result = values if output is None else schema_of(output)
        if self._open is None:
            composable = result.equals(values)
            tilings, _ = tilings_of(spans.windows, given, known.keys, composable=composable)
        merge = MergeFunction(function, name, result, vectorised)
        node = consolidate_node(inputs, merge, names, values, tilings, because)
        return replace(self, _nodes=(node,), _open=None)

    @property
    def _node(self) -> JobNode:
        """Return the operator that makes these tuples, if there is exactly one."""
        if self._open is not None:
            msg = (
                f"{self._open.fold.name} never emits its state: give it window=..., follow it by "
                "consolidate(...), or let it answer each tuple with emit='tuple'"
            )
            raise DefinitionError(msg)
        if len(self._nodes) != 1:
            msg = "tuples of several operators are not a result: map or compute them together first"
            raise DefinitionError(msg)
        return self._nodes[0]

    @property
    def _payload(self) -> pa.Schema:
        return self._inputs[0].payload

    def _united(self, others: Sequence[JobStream]) -> Self:
        nodes = (*self._inputs, *(node for each in others for node in each._inputs))
        for node in nodes[1:]:
            if not node.payload.equals(nodes[0].payload):
                msg = f"a union needs equal columns: {nodes[0].payload} and {node.payload}"
                raise DefinitionError(msg)
        return replace(self, _nodes=nodes, _open=None)

    @property
    def _inputs(self) -> tuple[JobNode, ...]:
        """Return the operators and sources that tuples come from."""
        return self._nodes if self._open is None else (self._node,)


def _spans(given: Window | Sequence[Window]) -> WindowSpans:
    several = [given] if isinstance(given, (JobWindow, str, int)) else list(given)
    found = [each if isinstance(each, JobWindow) else JobWindow(each) for each in several]
    rules = {each.spanning for each in found}
    if len(rules) != 1:
        msg = f"the windows of an operator must have one rule for spanning; got {sorted(rules)}"
        raise DefinitionError(msg)
    return WindowSpans(tuple(each.windows for each in found), rules.pop())


def _names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _name_of(function: Function) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return "function" if name == "<lambda>" else str(name)
