"""Two runs of one plan at the same times with other events: what rewriting turns into each other.

Idea: state of the run with other events, written into the checkpoint of the one with the usual
ones, must let both go on alike. So events are changed batch by batch, never their times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from icestream.inspect.reading import Reading, as_text
from icestream.plan.nodes import Plan
from icestream.runtime.local import LocalQuery
from icestream.testing.stories.checkpoints import events
from icestream.testing.stories.plans import open_query

#: how the events of one run become those of another, at the same times
Change = Callable[[pa.RecordBatch], pa.RecordBatch]


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the usual events."""
    return batch


def others(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return other values, and other keys where there are some."""
    changes = {"value": pc.add(pc.multiply(batch.column("value"), -2.5), 1)}
    if "k0" in batch.schema.names:
        changes["k0"] = pc.multiply(batch.column("k0"), 3)
    columns = [changes.get(name, batch.column(name)) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def fed(query: LocalQuery, numbers: range, change: Change) -> list[Counter[str]]:
    """Feed batches; return the rows of each."""
    return [
        bag(query.feed([[change(part) for part in split] for split in events(query.plan, number)]))
        for number in numbers
    ]


def run(plan: Plan, folder: Path, change: Change = same, batches: int = 5) -> str:
    """Run a few batches; return the checkpoint."""
    query = open_query(plan, str(folder), keep=3)
    fed(query, range(batches), change)
    query.close()
    return str(folder / "checkpoint")


def kept_rows(root: str, kept: str) -> pa.Table:
    """Return all that a checkpoint keeps of one kind."""
    reading = Reading(root, kept=kept)
    return pa.Table.from_batches(list(reading.batches()), schema=reading.schema)


def bag(table: pa.Table) -> Counter[str]:
    """Return how often each row is there."""
    return Counter(as_text(row) for row in table.to_pylist())
