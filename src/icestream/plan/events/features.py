"""Columns over frames: what `over` adds to events, as a node.

Idea: a feature is an aggregate over a frame. `lag`, `row_number` and `rank` are computed from such
aggregates: the value before an event is the first of two rows, if there are two. Calls on events
that already have features, and that read none of them, join these, so that features over any number
of keys and frames cost one exchange for each key and one for the events.

Invariant: features that are asked for twice are computed once
(`test_features_of_several_calls_are_computed_together`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.functions import result_type
from icestream.plan.nodes.events import Feature, Framed, Node
from icestream.plan.windows.frame import UNBOUNDED, Frame
from icestream.sql.expressions.compile import Projection
from icestream.sql.expressions.tree import quoted

#: all events up to an event in the order of arrival; up to its time; and those of its time
UP_TO_ROW = Frame(range=UNBOUNDED)
UP_TO_TIME = Frame(range=UNBOUNDED, peers=True)
OF_ITS_TIME = Frame(range=0, peers=True)
#: functions of the order of events, which have a frame of their own
ORDER_FUNCTIONS = ("lag", "rank", "row_number")
#: what a feature is called before columns are computed from it
_HIDDEN = "__feature"
_ROWS = Aggregate("count", None, "")


@dataclass(frozen=True)
class FeatureCall:
    """A column to add: a function of columns, in SQL, over a frame of events with equal keys."""

    function: str
    texts: tuple[str, ...]
    name: str
    keys: tuple[str, ...]
    frame: Frame
    parameters: tuple[object, ...] = ()


def with_features(node: Node, calls: Sequence[FeatureCall]) -> Framed:
    """Return events with further columns over frames."""
    before, adding = node, _Columns()
    if (
        isinstance(node, Framed)
        and node.time is None
        and all(_reads_only(node.before.payload, each) for each in calls)
    ):
        before, adding = node.before, _Columns(list(node.features), list(node.columns))
    for each in calls:
        taken = [*before.payload.names, *(name for name, _ in adding.columns)]
        if each.name in taken:
            msg = f"the events already have a column {each.name!r}: choose another alias"
            raise DefinitionError(msg)
        adding.columns.append((each.name, adding.text_of(each)))
    return Framed(
        _result(before.payload, adding),
        None,
        True,
        before.reach,
        before.delay,
        before=before,
        features=tuple(adding.features),
        columns=tuple(adding.columns),
    )


def rows_at_slides(
    node: Node,
    frame: Frame,
    time: pa.Field,
    keys: Sequence[str],
    aggregates: Sequence[Aggregate],
) -> Framed:
    """Return rows at the slides of a frame of events with equal keys: time, keys, answers."""
    payload, types = node.payload, {each.name: each.type for each in node.payload}
    answers = [pa.field(each.alias, result_type(each, types)) for each in aggregates]
    return Framed(
        pa.schema([time, *(payload.field(key) for key in keys), *answers]),
        None,
        True,
        node.reach + (frame.slide if isinstance(frame.slide, int) else 0),
        node.delay,
        before=node,
        features=tuple(Feature(tuple(keys), frame, each) for each in aggregates),
        columns=(),
        time=time,
    )


def feature_columns(
    payload: pa.Schema, columns: Sequence[tuple[str, str]], *, zone: str = "UTC"
) -> Projection:
    """Return what computes the columns of events from their features."""
    before = [name for name in payload.names if not name.startswith(_HIDDEN)]
    texts = [f"({text}) AS {quoted(name)}" for name, text in columns]
    return Projection.bind(payload, [*map(quoted, before), *texts], zone=zone)


def _result(payload: pa.Schema, adding: _Columns) -> pa.Schema:
    texts = dict.fromkeys(t for each in adding.features for t in each.aggregate.columns)
    inputs = {t: Projection.bind(payload, [f"({t}) AS x"]).schema[0].type for t in texts}
    fields = [
        pa.field(each.aggregate.alias, result_type(each.aggregate, inputs))
        for each in adding.features
    ]
    return feature_columns(pa.schema([*payload, *fields]), adding.columns).schema


def _reads_only(payload: pa.Schema, call: FeatureCall) -> bool:
    """Return whether the function and keys of a call can be computed from a payload."""
    try:
        Projection.bind(payload, [*map(quoted, call.keys), *(f"({t})" for t in call.texts), "1"])
    except DefinitionError:
        return False
    return True


class _Columns:
    """Features, and columns computed from them."""

    def __init__(
        self,
        features: list[Feature] | None = None,
        columns: list[tuple[str, str]] | None = None,
    ) -> None:
        self.features = features or []
        self.columns = columns or []

    def text_of(self, call: FeatureCall) -> str:
        """Return the SQL text of a call over its features."""
        keys, texts = call.keys, call.texts
        match call.function:
            case "row_number":
                return self._feature(keys, UP_TO_ROW, _ROWS)
            case "rank":
                before = self._feature(keys, UP_TO_TIME, _ROWS)
                return f"{before} - {self._feature(keys, OF_ITS_TIME, _ROWS)} + 1"
            case "lag":
                offset, default = call.parameters
                if offset == 0:
                    return texts[0]
                assert isinstance(offset, int)
                frame = Frame(rows=offset + 1)
                value = self._feature(keys, frame, Aggregate("first", texts[0], ""))
                count = self._feature(keys, frame, _ROWS)
                otherwise = "NULL" if default is None else default
                return f"CASE WHEN {count} > {offset} THEN {value} ELSE {otherwise} END"
        aggregate = Aggregate.of(call.function, texts, "", call.parameters)
        return self._feature(keys, call.frame, aggregate)

    def _feature(self, keys: tuple[str, ...], frame: Frame, aggregate: Aggregate) -> str:
        """Return the name of a feature, which is new or was asked for before."""
        for each in self.features:
            same = (each.keys, each.frame, replace(each.aggregate, alias=""))
            if same == (keys, frame, aggregate):
                return each.aggregate.alias
        alias = f"{_HIDDEN}{len(self.features)}"
        self.features.append(Feature(keys, frame, replace(aggregate, alias=alias)))
        return alias
