from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icestream.core.errors import CheckpointError, DefinitionError, InputError
from icestream.inspect.access.adapter_protocol import as_text
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.rewrite import rewrite
from icestream.inspect.state_rows import Reading
from icestream.inspect.verify import verify
from icestream.runtime.version.history import QueryHistory
from icestream.runtime.version.lease import Lease
from icestream.state.files import Files, LocalFiles
from icestream.state.versions.commits import VersionStore
from icestream.state.versions.ownership import Owner, TakenOver
from icestream.testing.simulated_disk import Crash, SimulatedDisk
from tests.fixtures.checkpoints import KINDS, events, make, opened

LEFT = "0: left"
#: kinds of state that are rows by group
GROUPED = ("groups", "pairs", "best", "processors", "jobs")
#: other kinds that can be rewritten, by the name of their rows
OTHERS = {
    "windows": "panes",
    "tumbling": "panes",
    "objects": "panes",
    "sessions": "sessions",
    "updates": "waiting",
    "update joins": "waiting",
}


def state(
    root: str, kept: str | None = None, version: int | None = None, files: Files | None = None
) -> pa.Table:
    reading = Reading(root, version, kept=kept, files=files)
    return pa.Table.from_batches(list(reading.batches()), schema=reading.schema)


def bag(table: pa.Table) -> Counter[str]:
    return Counter(as_text(row) for row in table.to_pylist())


@pytest.mark.parametrize("kind", [*GROUPED, *OTHERS])
def test_rows_that_nobody_edited_make_no_version(kind: str, tmp_path: Path) -> None:
    root = make(kind, str(tmp_path))
    kept = OTHERS.get(kind) or Reading(root).tables[0].name
    before = sorted(os.listdir(f"{root}/segments"))
    done = rewrite(Reading(root, kept=kept), state(root, kept))
    assert (done.version, done.groups, done.bytes) == (5, 0, 0)
    assert sorted(os.listdir(f"{root}/segments")) == before
    assert Checkpoint(root).versions[-1] == 5


@pytest.mark.parametrize("others", ["drop", "keep"])
def test_oracle_the_state_is_what_was_written(others: str, tmp_path: Path) -> None:
    root = make("pairs", str(tmp_path))
    before = state(root, LEFT)
    rows = before.to_pylist()
    [first, second, *_] = {row["__group"]: None for row in rows}
    edited = [row | {"__le": row["__le"] - 1} for row in rows if row["__group"] == first]
    edited += edited[:1]
    edited.append(edited[0] | {"__group": None, "user": 77})
    done = rewrite(
        Reading(root, kept=LEFT), pa.Table.from_pylist(edited, before.schema), others=others
    )
    groups = {row["__group"] for row in rows}
    assert done.version == 6
    assert done.groups == (2 if others == "keep" else len(groups) + 1)
    found = state(root, LEFT).to_pylist()
    changed = [as_text({"user": r["user"], "at": r["__le"]}) for r in edited]
    rest = [r for r in rows if r["__group"] != first and others == "keep"]
    wanted = changed + [as_text({"user": r["user"], "at": r["__le"]}) for r in rest]
    assert Counter(as_text({"user": r["user"], "at": r["__le"]}) for r in found) == Counter(wanted)
    assert (second in {row["__group"] for row in found}) == (others == "keep")
    report = verify(Checkpoint(root))
    assert report.is_fine
    assert 6 in report.intact
    assert bag(state(root, LEFT, version=5)) == bag(before)


def test_oracle_a_query_goes_on_from_rewritten_groups(tmp_path: Path) -> None:
    """State of one run, written into another that saw other events: both go on alike."""
    answers = []
    roots = [
        make("groups", str(tmp_path / name), batches) for name, batches in (("a", 5), ("b", 5))
    ]
    names = [table.name for table in Reading(roots[0]).tables]
    for name in names:
        empty = state(roots[1], name).slice(0, 0)
        rewrite(Reading(roots[1], kept=name), empty)
    assert all(state(roots[1], name).num_rows == 0 for name in names)
    for name in names:
        rewrite(Reading(roots[1], kept=name), state(roots[0], name))
    for folder in ("a", "b"):
        query = opened("groups", str(tmp_path / folder))
        answers.append([bag(query.feed(events(query.plan, batch))) for batch in (5, 6)])
        query.close()
    assert answers[0] == answers[1]
    assert all(verify(Checkpoint(root)).is_fine for root in roots)


def test_crash_a_batch_before_a_rewrite_is_delivered_after_it(tmp_path: Path) -> None:
    root = make("groups", str(tmp_path))
    name = Reading(root).tables[0].name
    query = opened("groups", str(tmp_path), keep=2)
    [given] = query.driver.batch(5, events(query.plan, 5))
    query.close()
    whole = state(root, name)
    for count in (1, 2, 3):
        assert rewrite(Reading(root, kept=name), whole.slice(count)).groups
    again = opened("groups", str(tmp_path), keep=2)
    [repeated] = again.driver.batch(5, events(again.plan, 5))
    assert repeated.again
    assert repeated.results == given.results
    assert all(os.path.exists(path) for path in repeated.results)
    [late] = [commit.version for commit in again.driver.maintained()][-1:]
    assert late == 9
    again.close()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "kind", ["groups", "windows", "sessions", pytest.param("updates", marks=pytest.mark.slow)]
)
def test_crash_every_step_of_a_rewrite(kind: str, tmp_path: Path) -> None:
    root = make(kind, str(tmp_path))
    name = OTHERS.get(kind) or Reading(root).tables[0].name
    edited = state(root, name).slice(1)
    allowed = [bag(state(root, name)), bag(edited)]
    whole = SimulatedDisk()
    for folder, _, names in os.walk(root):
        for each in names:
            whole.put(f"{folder}/{each}", Path(folder, each).read_bytes())
    seen = []
    for step in range(1, 1000):
        disk = whole.after_crash("keep", crash_at=step)
        try:
            rewrite(Reading(root, kept=name, files=disk), edited)
            break
        except Crash:
            after = disk.after_crash("drop")
        seen.append(allowed.index(bag(state(root, name, files=after))))
        assert verify(Checkpoint(root, after)).is_fine
    assert seen == sorted(seen)
    assert {*seen, allowed.index(bag(state(root, name, files=disk)))} == {0, 1}


def test_a_running_query_is_not_rewritten(tmp_path: Path) -> None:
    root = make("groups", str(tmp_path))
    name = Reading(root).tables[0].name
    history = QueryHistory(root, {"name": "here"})
    history.start()
    with pytest.raises(CheckpointError, match="stop it"):
        rewrite(Reading(root, kept=name), state(root, name).slice(1))
    history.end(None)
    assert rewrite(Reading(root, kept=name), state(root, name).slice(1)).version == 6


def edit(rows: pa.Table, **columns: Any) -> pa.Table:
    first = rows.slice(0, 1).to_pylist()[0] | columns
    return pa.Table.from_pylist([first], rows.schema)


def test_a_row_must_name_its_group(tmp_path: Path) -> None:
    root = make("pairs", str(tmp_path))
    rows, reading = state(root, LEFT), Reading(root, kept=LEFT)
    with pytest.raises(InputError, match="row 0 has the __group of one group and the key"):
        rewrite(reading, edit(rows, user=4711))
    with pytest.raises(InputError, match="32 hexadecimal digits"):
        rewrite(reading, edit(rows, __group="zz"))
    with pytest.raises(InputError, match="have no column user"):
        rewrite(reading, rows.drop_columns(["user"]))
    grouped = make("groups", str(tmp_path / "other"))
    table = Reading(grouped).tables[0]
    bare = state(grouped, table.name).drop_columns(["__group"])
    keys = [key for key in table.keys.names if key in bare.column_names]
    if not keys:
        with pytest.raises(InputError, match="row 0 names no group"):
            rewrite(Reading(grouped, kept=table.name), bare)


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k not in GROUPED and OTHERS.get(k) != "waiting"]
)
def test_what_cannot_be_rewritten_says_so(kind: str, tmp_path: Path) -> None:
    root = make(kind, str(tmp_path))
    name = Reading(root).tables[0].name
    with pytest.raises((CheckpointError, DefinitionError), match=r"rewritten"):
        rewrite(Reading(root, kept=name), state(root, name))


def test_only_the_last_version_is_rewritten(tmp_path: Path) -> None:
    root = make("groups", str(tmp_path))
    name = Reading(root).tables[0].name
    with pytest.raises(CheckpointError, match="version 4 is not the last"):
        rewrite(Reading(root, 4, kept=name), state(root, name))
    with pytest.raises(DefinitionError, match="'drop' or 'keep'"):
        rewrite(Reading(root, kept=name), state(root, name), others="burn")


def test_a_query_that_runs_unnoticed_loses_to_a_rewrite(tmp_path: Path) -> None:
    root = make("groups", str(tmp_path))
    running = opened("groups", str(tmp_path), keep=2)
    name = Reading(root).tables[0].name
    assert rewrite(Reading(root, kept=name), state(root, name).slice(1)).version == 6
    with pytest.raises(TakenOver, match="icestream state rewrite"):
        running.driver.batch(5, events(running.plan, 5))


def test_a_query_that_holds_a_lease_is_not_rewritten(tmp_path: Path) -> None:
    root = make("groups", str(tmp_path))
    name = Reading(root).tables[0].name
    lease = Lease(LocalFiles(), root)
    lease.hold(VersionStore(LocalFiles(), root).take(Owner.here("somebody")).epoch)
    with pytest.raises(CheckpointError, match=r"somebody \(process"):
        rewrite(Reading(root, kept=name), state(root, name).slice(1))
    lease.release()
    assert rewrite(Reading(root, kept=name), state(root, name).slice(1)).version == 6
