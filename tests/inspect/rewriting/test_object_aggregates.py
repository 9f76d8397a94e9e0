from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from icestream.core.errors import InputError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.rewrite import rewrite
from icestream.inspect.state_rows import Reading
from icestream.inspect.verify import verify
from icestream.operators.aggregates.aggregate import Aggregate
from tests.fixtures.other_events import bag, fed, kept_rows, others, run, same
from tests.fixtures.plans import open_query, window_plan

panes = partial(kept_rows, kept="panes")
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
    with pytest.raises(InputError, match="no pane of an open window begins"):
        rewrite(reading, edited(rows, __pane=rows["__pane"][0].as_py().replace(year=1969)))
    with pytest.raises(InputError, match="the function of a state cannot read it"):
        rewrite(reading, edited(rows, **{"__state(distinct)": b"no sketch"}))
