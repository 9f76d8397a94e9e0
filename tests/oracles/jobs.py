"""Jobs computed the obvious way: one tuple and one window after the other, over the whole stream.

Idea: functions are called in their form for rows; every tuple is checked against every window that
could contain it. There are no batches, no watermark and no partials but those that the job defines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from icestream.core.times import Micros
from icestream.operators.dataflow.results import LIFETIME
from icestream.operators.jobs.batches import TS1, TS2
from icestream.operators.jobs.mapping import several
from icestream.plan.nodes.jobs import ComputeNode, ConsolidateNode, JobNode, MapNode, TupleSource
from icestream.plan.windows.grid import Windows


@dataclass(frozen=True)
class Spanning:
    """A tuple: its columns and its time span."""

    row: Mapping[str, Any]
    ts1: Micros
    ts2: Micros


def job_results(node: JobNode, events: Mapping[int, Sequence[Spanning]]) -> list[Spanning]:
    """Return all tuples of a node whose functions are in the form for rows."""
    before = [each for source in node.inputs for each in job_results(source, events)]
    match node:
        case TupleSource():
            return list(events[node.source])
        case MapNode():
            return [made for each in before for made in _mapped(node, each)]
        case ComputeNode():
            return _computed(node, before)
        case ConsolidateNode():
            return _consolidated(node, before)
    msg = f"{type(node).__name__} is unknown"
    raise AssertionError(msg)


def counted(tuples: Iterable[Spanning], digits: int = 6) -> Counter[Any]:
    """Return tuples as a counter, for comparison."""
    return Counter(
        (each.ts1, each.ts2, tuple((n, _plain(v, digits)) for n, v in sorted(each.row.items())))
        for each in tuples
    )


def tuples_in(rows: pa.Table) -> list[Spanning]:
    """Return the rows of a result as tuples."""
    lifetimes = rows.column(LIFETIME).combine_chunks()
    begins, ends = (lifetimes.field(edge).cast(pa.int64()).to_pylist() for edge in ("start", "end"))
    listed = rows.drop_columns([LIFETIME]).to_pylist()
    return [Spanning(*each) for each in zip(listed, begins, ends, strict=True)]


def windows_of(windows: Windows, each: Spanning, rule: str) -> list[Micros]:
    """Return the starts of the windows that a tuple is in, by checking all nearby ones."""
    first = (each.ts1 - windows.range - windows.offset) // windows.slide - 1
    last = (each.ts2 - windows.offset) // windows.slide + 1
    starts = [n * windows.slide + windows.offset for n in range(first, last + 1)]
    return [start for start in starts if _holds(start, start + windows.range, each, rule)]


def _holds(start: Micros, end: Micros, each: Spanning, rule: str) -> bool:
    match rule:
        case "begin":
            return start <= each.ts1 < end
        case "end":
            return start < each.ts2 <= end
        case "overlap":
            return start < each.ts2 and each.ts1 < end
    return start <= each.ts1 and each.ts2 <= end


def _mapped(node: MapNode, each: Spanning) -> list[Spanning]:
    kept = {name: each.row[name] for name in node.change.kept.names}
    given = {**each.row, TS1: each.ts1, TS2: each.ts2}
    found = []
    for made in several(node.change.function(given)):
        span = made.get(TS1, each.ts1), made.get(TS2, each.ts2)
        new = {name: made[name] for name in node.change.made.names}
        found.append(Spanning({**kept, **new}, *span))
    return found


def _computed(node: ComputeNode, before: Sequence[Spanning]) -> list[Spanning]:
    states: dict[Any, dict[str, Any]] = {}
    answers = []
    for each in sorted(before, key=lambda each: each.ts1):
        key = tuple(each.row[name] for name in node.key)
        spans = [(0, 0)]
        if node.spans is not None:
            spans = [
                (start, start + windows.range)
                for windows in node.spans.windows
                for start in windows_of(windows, each, node.spans.spanning)
            ]
        for span in spans:
            state = states.setdefault((key, span), dict(node.fold.initial))
            made = node.fold.function(state, {**each.row, TS1: each.ts1, TS2: each.ts2})
            if node.fold.eager and node.fold.answers is not None:
                made, given = made
                named = dict(zip(node.key, key, strict=True))
                answers += [
                    Spanning({**named, **answer}, each.ts1, each.ts2) for answer in several(given)
                ]
            if made is not None:
                states[key, span] = made
    if node.fold.eager:
        return list(before) if node.fold.answers is None else answers
    return [
        Spanning({**dict(zip(node.key, key, strict=True)), **deepcopy(state)}, *span)
        for (key, span), state in states.items()
    ]


def _consolidated(node: ConsolidateNode, before: Sequence[Spanning]) -> list[Spanning]:
    """Merge all partials of the shortest length that fills a window by itself."""
    windows: dict[Any, list[Spanning]] = {}
    for tiling in node.tilings:
        window = tiling.window
        length = min(each for each in node.given if window.range % each == 0)
        for each in before:
            if not tiling.wanted or each.ts2 - each.ts1 != length:
                continue
            key = tuple(each.row[name] for name in node.key)
            for start in windows_of(window, each, "inside"):
                windows.setdefault((key, start, start + window.range), []).append(each)
    return [
        Spanning({**dict(zip(node.key, key, strict=True)), **_merged(node, parts)}, start, end)
        for (key, start, end), parts in windows.items()
    ]


def _merged(node: ConsolidateNode, parts: Sequence[Spanning]) -> Mapping[str, Any]:
    rows = [
        {**{name: each.row[name] for name in node.values.names}, TS1: each.ts1, TS2: each.ts2}
        for each in sorted(parts, key=lambda each: each.ts1)
    ]
    merged: Mapping[str, Any] = node.merge.function(rows)
    return merged


def _plain(value: Any, digits: int) -> Any:
    return round(value, digits) if isinstance(value, float) else value
