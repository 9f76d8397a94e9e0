from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from icestream.core.errors import CheckpointError, InputError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.rewrite import rewrite
from icestream.inspect.state_rows import Reading
from icestream.inspect.verify import verify
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.testing.sources import SECOND
from tests.fixtures.checkpoints import events
from tests.fixtures.other_events import bag, fed, kept_rows, others, run, same
from tests.fixtures.plans import open_query, window_plan

panes = partial(kept_rows, kept="panes")


def two_views() -> Plan:
    plan = window_plan("20 seconds", "5 seconds")
    [view] = plan.views
    assert isinstance(view.windows, Windows)
    longer = replace(view, windows=replace(view.windows, range=30 * SECOND))
    return replace(plan, views=(view, longer))


PLANS = {
    "sliding": window_plan("20 seconds", "5 seconds"),
    "tumbling": window_plan("10 seconds"),
    "cumulative": window_plan(windows=Cumulative(20 * SECOND, 5 * SECOND)),
    "two kinds": two_views(),
    "without keys": window_plan("20 seconds", "5 seconds", keys=pa.schema([])),
}


@pytest.mark.parametrize("name", ["sliding", "tumbling", "cumulative", "two kinds"])
def test_oracle_a_query_goes_on_from_rewritten_panes(name: str, tmp_path: Path) -> None:
    """Panes of one run, written into another that saw other events: both go on alike."""
    plan = PLANS[name]
    wanted, root = (
        run(plan, tmp_path / which, change) for which, change in (("a", others), ("b", same))
    )
    done = rewrite(Reading(root, kept="panes"), panes(wanted))
    assert (done.version, done.groups > 5, done.bytes > 0) == (6, True, True)
    assert bag(panes(root)) == bag(panes(wanted))
    assert verify(Checkpoint(root)).is_fine
    answers = []
    for which in ("a", "b"):
        query = open_query(plan, str(tmp_path / which), keep=3)
        rows = fed(query, range(5, 8), same)
        answers.append([*rows, bag(query.flush())])
        query.close()
    assert answers[0] == answers[1]
    assert sum(map(len, answers[0])) > 20
    assert verify(Checkpoint(root)).is_fine


def test_oracle_groups_that_no_row_names_are_kept_or_dropped(tmp_path: Path) -> None:
    plan = PLANS["sliding"]
    roots = [run(plan, tmp_path / which) for which in ("keep", "drop")]
    whole = panes(roots[0])
    one = whole.filter(pc.equal(whole["key"], 2))
    raised = pc.add(one["__rows()"], 100)
    edited = one.set_column(
        one.column_names.index("__rows()"), one.schema.field("__rows()"), raised
    )
    for root, what in zip(roots, ("keep", "drop"), strict=True):
        rewrite(Reading(root, kept="panes"), edited, others=what)
        rest = whole.filter(pc.not_equal(whole["key"], 2))
        expected = bag(edited) + (bag(rest) if what == "keep" else Counter())
        assert bag(panes(root)) == expected
    query = open_query(plan, str(tmp_path / "keep"), keep=3)
    rows = pa.concat_tables([query.feed(events(plan, 5)), query.flush()]).to_pylist()
    raised_windows = [row for row in rows if row["events"] > 100]
    assert {row["key"] for row in raised_windows} == {2}
    query.close()


def test_a_whole_stream_is_one_group_of_panes(tmp_path: Path) -> None:
    root = run(PLANS["without keys"], tmp_path)
    assert rewrite(Reading(root, kept="panes"), panes(root)).groups == 0
    fewer = panes(root).slice(1)
    assert rewrite(Reading(root, kept="panes"), fewer).groups == 1
    assert bag(panes(root)) == bag(fewer)


def edited(rows: pa.Table, **columns: Any) -> pa.Table:
    first = rows.slice(0, 1).to_pylist()[0] | columns
    return pa.Table.from_pylist([first], rows.schema)


def test_rows_that_can_be_no_panes_are_refused(tmp_path: Path) -> None:
    root = run(PLANS["sliding"], tmp_path)
    rows, reading = panes(root), Reading(root, kept="panes")
    at = rows["__pane"][0].as_py()
    with pytest.raises(InputError, match="no pane of an open window begins"):
        rewrite(reading, edited(rows, __pane=at.replace(microsecond=5)))
    with pytest.raises(InputError, match="no pane of an open window begins"):
        rewrite(reading, edited(rows, __pane=at.replace(year=1969)))
    with pytest.raises(InputError, match="has 4 words in each row"):
        rewrite(reading, edited(rows, **{"__first(value)": [1, 2]}))
    with pytest.raises(InputError, match="has no events"):
        rewrite(reading, edited(rows, **{"__rows()": 0}))


def test_windows_of_changes_are_refused(tmp_path: Path) -> None:
    root = run(window_plan("20 seconds", "5 seconds", mode="changes"), tmp_path)
    with pytest.raises(CheckpointError, match=r"cannot be rewritten \(in mode 'changes'"):
        rewrite(Reading(root, kept="panes"), panes(root).slice(1))
