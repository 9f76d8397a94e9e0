"""The n-way join over lifetimes the slow, obvious way: every combination of rows is checked.

Idea: rows are plain tuples; a result is one row of each port with the same key whose lifetimes
overlap. How rows arrived, what was in memory and when it was cleaned up does not matter.

Invariant: the result is a bag; it does not depend on the order in which rows or ports arrive
(`tests/oracles/test_multi_join.py`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import pyarrow as pa

from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.lifetimes.changes import DIFF, HEAD, LE, RE
from icestream.operators.multi_join.spec import MultiJoinSpec
from tests.oracles.lifetimes import Bag, Event, plain

#: returns whether a combination is in the result, given its columns by name
Where = Callable[[dict[str, Any]], bool]


def events_of(changes: Iterable[pa.RecordBatch]) -> Bag:
    """Return changes as a bag of events."""
    names = {field.name for field in HEAD}
    bag: Bag = Counter()
    for batch in changes:
        for row in batch.to_pylist():
            payload = tuple(plain(value) for name, value in row.items() if name not in names)
            bag[Event((row[ID_HIGH_COLUMN], row[ID_LOW_COLUMN]), row[LE], row[RE], payload)] += row[
                DIFF
            ]
    return bag


def joined(spec: MultiJoinSpec, ports: Sequence[Bag], where: Where | None = None) -> Bag:
    """Return the result of a join over the rows of each port."""
    by_key: list[dict[Any, list[tuple[Event, int]]]] = []
    for bag in ports:
        groups: dict[Any, list[tuple[Event, int]]] = defaultdict(list)
        for event, count in bag.items():
            groups[event.group].append((event, count))
        by_key.append(groups)
    answer: Bag = Counter()
    places = [(port, spec.inputs[port].get_field_index(name)) for port, name, _ in spec.columns]
    for key in set(by_key[0]).intersection(*by_key[1:]):
        for members in product(*(groups[key] for groups in by_key)):
            le = max(event.le for event, _ in members)
            re = min(event.re for event, _ in members)
            if le >= re:
                continue
            payload = tuple(members[port][0].payload[place] for port, place in places)
            if where is not None and not where(dict(zip(spec.payload.names, payload, strict=True))):
                continue
            count = 1
            for _, times in members:
                count *= times
            answer[Event(key, le, re, payload)] += count
    return answer
