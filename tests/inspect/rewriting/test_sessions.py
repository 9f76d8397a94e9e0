from __future__ import annotations

from collections import Counter
from datetime import timedelta
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
from icestream.plan.windows.session import Session
from icestream.testing.sources import SECOND
from tests.fixtures.other_events import bag, fed, kept_rows, others, run, same
from tests.fixtures.plans import open_query, window_plan

sessions = partial(kept_rows, kept="sessions")
PLANS = {
    "by key": window_plan(windows=Session(4 * SECOND)),
    "without keys": window_plan(windows=Session(SECOND // 50), keys=pa.schema([])),
}


@pytest.mark.parametrize("name", list(PLANS))
def test_oracle_a_query_goes_on_from_rewritten_sessions(name: str, tmp_path: Path) -> None:
    """Sessions of one run, written into another that saw other events: both go on alike."""
    plan = PLANS[name]
    wanted, root = (
        run(plan, tmp_path / which, change) for which, change in (("a", others), ("b", same))
    )
    done = rewrite(Reading(root, kept="sessions"), sessions(wanted))
    assert (done.version, done.groups > 0, done.bytes > 0) == (6, True, True)
    assert bag(sessions(root)) == bag(sessions(wanted))
    assert verify(Checkpoint(root)).is_fine
    answers = []
    for which in ("a", "b"):
        query = open_query(plan, str(tmp_path / which), keep=3)
        answers.append([*fed(query, range(5, 8), same), bag(query.flush())])
        query.close()
    assert answers[0] == answers[1]
    assert sum(map(len, answers[0])) > 5
    assert verify(Checkpoint(root)).is_fine


def test_oracle_groups_that_no_row_names_are_kept_or_dropped(tmp_path: Path) -> None:
    for what in ("keep", "drop"):
        root = run(PLANS["by key"], tmp_path / what)
        whole = sessions(root)
        one = whole.filter(pc.equal(whole["key"], 2))
        place = one.column_names.index("__rows()")
        edited = one.set_column(place, one.schema.field(place), pc.add(one["__rows()"], 100))
        assert rewrite(Reading(root, kept="sessions"), edited, others=what).rows == one.num_rows
        rest = whole.filter(pc.not_equal(whole["key"], 2))
        expected = bag(edited) + (bag(rest) if what == "keep" else Counter())
        assert bag(sessions(root)) == expected
        assert verify(Checkpoint(root)).is_fine


def test_sessions_of_a_group_that_touch_become_one(tmp_path: Path) -> None:
    """Two rows; the second begins where the first ends:

    [----first----)
                  [----second----)
    """
    root = run(PLANS["by key"], tmp_path)
    first = sessions(root).slice(0, 1).to_pylist()[0]
    second = first | {"__start": first["__end"], "__end": first["__end"] + timedelta(seconds=9)}
    both = pa.Table.from_pylist([first, second], sessions(root).schema)
    rewrite(Reading(root, kept="sessions"), both)
    [found] = sessions(root).to_pylist()
    assert (found["__start"], found["__end"]) == (first["__start"], second["__end"])
    assert found["__rows()"] == 2 * first["__rows()"]


def edited(rows: pa.Table, **columns: Any) -> pa.Table:
    first = rows.slice(0, 1).to_pylist()[0] | columns
    return pa.Table.from_pylist([first], rows.schema)


def test_rows_that_can_be_no_sessions_are_refused(tmp_path: Path) -> None:
    root = run(PLANS["by key"], tmp_path)
    rows, reading = sessions(root), Reading(root, kept="sessions")
    start, end = (rows[name][0].as_py() for name in ("__start", "__end"))
    for bounds in (
        {"__start": end - timedelta(seconds=3)},
        {"__start": start.replace(year=1969), "__end": end.replace(year=1969)},
    ):
        with pytest.raises(InputError, match="is not an open session"):
            rewrite(reading, edited(rows, **bounds))
    with pytest.raises(InputError, match="has no events"):
        rewrite(reading, edited(rows, **{"__rows()": 0}))
