from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from icestream.core.errors import InputError
from icestream.inspect.checkpoint import Checkpoint
from icestream.inspect.reading import Reading, as_text
from icestream.inspect.rewrite import rewrite
from icestream.inspect.verify import verify
from icestream.operators.aggregates import Aggregate
from icestream.plan.nodes import Plan
from icestream.runtime.local import LocalQuery
from icestream.testing.stories.checkpoints import events
from icestream.testing.stories.plans import open_query, window_plan

#: how the events of one run become those of another, at the same times
Change = Callable[[pa.RecordBatch], pa.RecordBatch]
PLAN = window_plan(
    "20 seconds",
    "5 seconds",
    aggregates=[
        Aggregate("count", None, "n"),
        Aggregate("sum", "value", "total"),
        Aggregate("collect_list", "value", "values"),
        Aggregate("median", "value", "middle"),
        Aggregate("approx_count_distinct", "value", "distinct"),
    ],
)


def bag(table: pa.Table) -> Counter[str]:
    return Counter(as_text(row) for row in table.to_pylist())


def panes(root: str) -> pa.Table:
    reading = Reading(root, kept="panes")
    return pa.Table.from_batches(list(reading.batches()), schema=reading.schema)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def others(batch: pa.RecordBatch) -> pa.RecordBatch:
    changes = {
        "value": pc.add(pc.multiply(batch.column("value"), -2.5), 1),
        "k0": pc.multiply(batch.column("k0"), 3),
    }
    columns = [changes.get(name, batch.column(name)) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def fed(query: LocalQuery, numbers: range, change: Change) -> list[Counter[str]]:
    return [
        bag(query.feed([[change(part) for part in split] for split in events(query.plan, number)]))
        for number in numbers
    ]


def run(plan: Plan, folder: Path, change: Change = same) -> str:
    query = open_query(plan, str(folder), keep=3)
    fed(query, range(5), change)
    query.close()
    return str(folder / "checkpoint")


def test_oracle_a_query_goes_on_from_rewritten_objects(tmp_path: Path) -> None:
    """States of one run, written into another that saw other events: both go on alike."""
    wanted, root = (
        run(PLAN, tmp_path / which, change) for which, change in (("a", others), ("b", same))
    )
    done = rewrite(Reading(root, kept="panes"), panes(wanted))
    assert (done.version, done.groups > 5, done.bytes > 0) == (6, True, True)
    assert bag(panes(root)) == bag(panes(wanted))
    assert verify(Checkpoint(root)).is_fine
    answers = []
    for which in ("a", "b"):
        query = open_query(PLAN, str(tmp_path / which), keep=3)
        answers.append([*fed(query, range(5, 8), same), bag(query.flush())])
        query.close()
    assert answers[0] == answers[1]
    assert sum(map(len, answers[0])) > 20
    assert verify(Checkpoint(root)).is_fine


@pytest.mark.parametrize("what", ["keep", "drop"])
def test_oracle_groups_that_no_row_names_are_kept_or_dropped(what: str, tmp_path: Path) -> None:
    root = run(PLAN, tmp_path)
    whole = panes(root)
    one = whole.filter(pc.equal(whole["key"], 2))
    place = one.column_names.index("__rows()")
    edited = one.set_column(place, one.schema.field(place), pc.add(one["__rows()"], 100))
    assert rewrite(Reading(root, kept="panes"), edited, others=what).rows == one.num_rows
    rest = whole.filter(pc.not_equal(whole["key"], 2))
    expected = bag(edited) + (bag(rest) if what == "keep" else Counter())
    assert bag(panes(root)) == expected
    assert verify(Checkpoint(root)).is_fine


def test_no_row_at_all_empties_all_panes(tmp_path: Path) -> None:
    root = run(PLAN, tmp_path)
    rewrite(Reading(root, kept="panes"), panes(root).slice(0, 0))
    assert panes(root).num_rows == 0
    assert verify(Checkpoint(root)).is_fine
    query = open_query(PLAN, str(tmp_path), keep=3)
    rows = fed(query, range(5, 8), same)
    query.close()
    assert sum(map(len, rows)) > 5


def edited(rows: pa.Table, **columns: Any) -> pa.Table:
    first = rows.slice(0, 1).to_pylist()[0] | columns
    return pa.Table.from_pylist([first], rows.schema)


def test_rows_that_can_be_no_states_are_refused(tmp_path: Path) -> None:
    root = run(PLAN, tmp_path)
    rows, reading = panes(root), Reading(root, kept="panes")
    with pytest.raises(InputError, match="no pane that open windows need begins"):
        rewrite(reading, edited(rows, __pane=rows["__pane"][0].as_py().replace(year=1969)))
    with pytest.raises(InputError, match="none that its function can read"):
        rewrite(reading, edited(rows, **{"__state(distinct)": b"no sketch"}))
