"""User-defined operators: Python code with typed state by group and timers in event time.

`per_group` is the form for one group at a time, `vectorised` that for many; `declared` says what
can be kept, `operator` runs either form over changes.
"""

from __future__ import annotations

from icestream.operators.user_defined.declared import (
    ListState,
    MapState,
    ObjectState,
    TableState,
    ValueState,
    pickled,
)
from icestream.operators.user_defined.operator import UserDefined
from icestream.operators.user_defined.per_group import (
    ExpiredTimerInfo,
    Rows,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from icestream.operators.user_defined.vectorised import (
    DueBatch,
    GroupedBatch,
    State,
    VectorisedProcessor,
)

__all__ = [
    "DueBatch",
    "ExpiredTimerInfo",
    "GroupedBatch",
    "ListState",
    "MapState",
    "ObjectState",
    "Rows",
    "State",
    "StatefulProcessor",
    "StatefulProcessorHandle",
    "TableState",
    "TimerValues",
    "UserDefined",
    "ValueState",
    "VectorisedProcessor",
    "pickled",
]
