"""From calls on update streams to the tree in front of the queue: SQL text and input numbers.

Idea: Spark filters and computes columns before streams are combined; after a union or a join
Icestream does, from SQL text. Spark analyses PySpark columns over an empty frame with the available
columns, so that Spark alone defines what they mean and which errors they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame

from icestream.api.columns import quoted, resolving, spark_columns
from icestream.api.shared_plan import StreamInput
from icestream.api.update_result import common_columns
from icestream.core.errors import DefinitionError
from icestream.operators.latest.pre_queue import (
    PreQueueFilter,
    PreQueueInput,
    PreQueueMap,
    PreQueueNode,
    PreQueueUnion,
    numbers_of,
)
from icestream.operators.latest.update_stream import UpdateStream


def arriving(
    parts: Sequence[StreamInput], keys: tuple[str, ...], numbers: tuple[int, ...] | None = None
) -> PreQueueInput:
    """Return the input of a user's tree in front of the queue; inputs are numbered from 0."""
    times = {part.time for part in parts}
    if len(times) > 1:
        msg = f"streams that are combined need the same name for their time; got {sorted(times)}"
        raise DefinitionError(msg)
    stream = UpdateStream(common_columns(parts), keys, parts[0].time)
    return PreQueueInput(tuple(range(len(parts))) if numbers is None else numbers, stream)


def moved(front: PreQueueNode, by: int) -> PreQueueNode:
    """Return a user's tree in front of the queue with its input numbers increased."""
    if isinstance(front, PreQueueInput):
        return replace(front, numbers=tuple(number + by for number in front.numbers))
    if isinstance(front, PreQueueFilter | PreQueueMap):
        return replace(front, over=moved(front.over, by))
    if isinstance(front, PreQueueUnion):
        return replace(front, sources=tuple(moved(each, by) for each in front.sources))
    return replace(front, left=moved(front.left, by), right=moved(front.right, by))


def inputs_by_trust(front: PreQueueNode) -> list[int]:
    """Return input numbers of a user's tree in front of the queue, a union's most trusted first."""
    if not isinstance(front, PreQueueUnion):
        return list(numbers_of(front))
    return [number for place in front.truth for number in numbers_of(front.sources[place])]


def texts_of(frame: DataFrame, columns: Sequence[Column | str]) -> list[str]:
    """Return Spark columns selected in front of the queue as SQL, one text per column."""
    with resolving(frame.columns):
        selected = frame.select(*spark_columns(frame, columns))
        chosen = selected._jdf.queryExecution().analyzed().expressions()
    texts = []
    for place in range(chosen.size()):
        one = chosen.apply(place)
        name, is_column = one.name(), one.getClass().getSimpleName() == "AttributeReference"
        texts.append(quoted(name) if is_column else f"({one.child().sql()}) AS {quoted(name)}")
    return texts


def condition_of(frame: DataFrame, condition: Column | str) -> str:
    """Return a user's condition of a filter in front of the queue as SQL."""
    if isinstance(condition, str):
        return condition
    return texts_of(frame, [condition.alias("x")])[0].removesuffix(" AS `x`")
