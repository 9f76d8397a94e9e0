"""An aggregate over a handful of events, computed as operators do: lifted, combined, lowered.

Idea: events are cut into pieces, each is folded into an entry of its own, the entries are merged in
any order, and the answer is read off. Beside `answers.answer` this tests a function without windows
and logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.operators.aggregates import Aggregate
from icestream.operators.columns import ARRIVAL, TIME, Column
from icestream.operators.fields import Layout
from icestream.operators.windows.fold import EntryTable
from icestream.operators.windows.runs import sorted_run
from icestream.state.keys import KeyCodec


def folded(
    aggregate: Aggregate,
    columns: Mapping[str, pa.Array],
    *,
    times: Sequence[int] | None = None,
    cuts: Sequence[int] = (),
    merged: Sequence[int] | None = None,
) -> Any:
    """Return the answer over the events, cut before `cuts` and merged in the order `merged`."""
    events = max((len(values) for values in columns.values()), default=len(times or ()))
    types = {name: values.type for name, values in columns.items()}
    layout = Layout.of(aggregate.fields(types))
    whole = {
        **columns,
        TIME: pa.array(range(events) if times is None else times, pa.int64()),
        ARRIVAL: pa.array(range(events), pa.int64()),
    }
    bounds = [0, *sorted(cuts), events]
    entries = []
    for first, last in pairwise(bounds):
        table = EntryTable(layout, KeyCodec(pa.schema([])), 8)
        part = {name: Column(values.slice(first, last - first)) for name, values in whole.items()}
        panes = np.zeros(last - first, dtype=np.int64)
        assert not list(table.fold(_no_keys(last - first), panes, part))
        entries.append(table.take().entries)
    order = range(len(entries)) if merged is None else merged
    rows = np.concatenate([entries[place] for place in order])
    _, combined = sorted_run(np.zeros(len(rows), dtype=np.int64), rows, layout)
    if len(combined) == 0:
        combined = layout.entry_identity[None, :]
    result = aggregate.lower(combined[:, 2:], layout, types)
    assert result.type == aggregate.result_type(types)
    result.validate(full=True)
    return result[0].as_py()


def _no_keys(rows: int) -> pa.RecordBatch:
    none = pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    return pa.RecordBatch.from_struct_array(none)
