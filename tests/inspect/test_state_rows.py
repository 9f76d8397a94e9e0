from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import BudgetError, CheckpointError, DefinitionError
from icestream.core.times import MINUS_INFINITY
from icestream.inspect.access.adapter_protocol import as_text
from icestream.inspect.access.checkpoint import Checkpoint, NotACheckpoint
from icestream.inspect.adapters.windows import WINDOWS
from icestream.inspect.differences import differences
from icestream.inspect.state_rows import Reading
from icestream.inspect.verify import verify
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.latest.pre_queue import PreQueueOperator
from icestream.operators.latest.saved_arrays import table_of
from icestream.plan.nodes.updates import Updates
from icestream.plan.state_schema import NoSchema, read, state_schema_of, written
from tests.fixtures.checkpoints import KINDS, events, make, opened
from tests.fixtures.dataflow_plans import PlanStream, dataflow, windows_of_ratings
from tests.fixtures.plans import open_query, window_plan
from tests.suites.dataflow_conformance import open_dataflow

WINDOWED = ("windows", "tumbling", "objects", "sessions")
FRAMES = ("rows", "ranges")
#: shown up to a number of windows, so that all that are open are among them
SIMPLE = pa.schema([("value", pa.float64())])


def prints(root: str) -> dict[str, str]:
    return {
        os.path.join(folder, name): hashlib.sha256(Path(folder, name).read_bytes()).hexdigest()
        for folder, _, names in os.walk(root)
        for name in names
    }


def bag(table: pa.Table) -> Counter[str]:
    return Counter(as_text(row) for row in table.to_pylist())


def read_all(reading: Reading) -> pa.Table:
    return pa.Table.from_batches(list(reading.batches()), schema=reading.schema)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow] if kind == "update windows" else [])
        for kind in KINDS
    ],
)
def test_looking_changes_no_byte(kind: str, tmp_path: Path) -> None:
    root = make(kind, str(tmp_path))
    before = prints(root)
    reading = Reading(root)
    assert read_all(reading).num_rows > 0
    assert reading.groups(5)
    assert prints(root) == before


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", WINDOWED)
def test_parity_open_windows_beside_a_query_that_ends_here(kind: str, tmp_path: Path) -> None:
    root = make(kind, str(tmp_path))
    found = read_all(Reading(root)).drop_columns(["__shard", "__group"])
    ended = opened(kind, str(tmp_path)).flush()
    assert bag(found) == bag(ended)


def test_parity_open_windows_of_a_dataflow_beside_one_that_ends_here(tmp_path: Path) -> None:
    flow = windows_of_ratings()
    query = open_dataflow(flow, tmp_path)
    for batch in range(4):
        query.feed(events(flow, batch))
    root = str(tmp_path / "checkpoint")
    assert verify(Checkpoint(root)).is_fine
    reading = Reading(root)
    assert {table.operator for table in reading.tables} == {"component 0"}
    found = read_all(reading).drop_columns(["__shard", "__group"]).to_pylist()
    ended = query.flush().to_pylist()
    shown = [(row["window"], row["user"], row["n"]) for row in found]
    wanted = [(row["__window"], row["user"], row["n"]) for row in ended]
    assert sorted(map(str, shown)) == sorted(map(str, wanted))
    assert len(wanted) > 3


def test_windows_that_keep_raw_events_show_the_first_that_ends(tmp_path: Path) -> None:
    root = make("events", str(tmp_path))
    found = read_all(Reading(root)).drop_columns(["__shard", "__group"])
    ended = opened("events", str(tmp_path)).flush()
    first = min(row["window"]["end"] for row in ended.to_pylist())
    rows = [row for row in ended.to_pylist() if row["window"]["end"] == first]
    assert bag(found) == Counter(map(as_text, rows))


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_show_each_group_as_its_last_event_saw_it(kind: str, tmp_path: Path) -> None:
    query = opened(kind, str(tmp_path))
    last: dict[int, dict[str, Any]] = {}
    for batch in range(4):
        for row in query.feed(events(query.plan, batch)).to_pylist():
            last[row["key"]] = row
    found = read_all(Reading(str(tmp_path / "checkpoint")))
    for row in query.flush().to_pylist():
        last[row["key"]] = row
    shown = {row["key"]: row for row in found.to_pylist()}
    assert shown.keys() == last.keys()
    for key, row in last.items():
        assert shown[key]["time"] == row["time"]
        if kind == "rows":
            assert {name: shown[key][name] for name in row} == row


def test_bounded_sliding_windows_show_the_first_that_end(tmp_path: Path) -> None:
    plan = window_plan("60 seconds", "1 second", aggregates=[Aggregate("count", None, "n")])
    query = open_query(plan, str(tmp_path))
    for batch in range(3):
        query.feed(events(plan, batch))
    reading = Reading(str(tmp_path / "checkpoint"))
    ends = sorted({row["window"]["end"] for row in read_all(reading).to_pylist()})
    assert len(ends) == WINDOWS
    assert any("60 windows open" in note for note in reading.notes)
    every = sorted({row["window"]["end"] for row in query.flush().to_pylist()})
    assert ends == every[:WINDOWS]


def test_parity_rows_of_groups_beside_the_running_store(tmp_path: Path) -> None:
    query = opened("pairs", str(tmp_path))
    came: Counter[tuple[int, int]] = Counter()
    watermark = MINUS_INFINITY
    for batch in range(4):
        splits = events(query.plan, batch)
        query.feed(splits)
        for (rows,) in splits:
            for row in rows.to_pylist():
                at = int(row["time"].timestamp() * 1e6)
                if at >= watermark:
                    came[row["s0_0"], at] += 1
        assert query.driver.last is not None
        watermark = query.driver.last.watermark
    reading = Reading(str(tmp_path / "checkpoint"), kept="0: left")
    kept = Counter((row["user"], row["__le"]) for row in read_all(reading).to_pylist())
    alive = {place: n for place, n in came.items() if place[1] + 6_000_000 > watermark}
    assert kept == alive


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["windows", "sessions", "rows", "groups", "pairs", "updates"])
def test_one_group_is_found_by_its_key_alone(kind: str, tmp_path: Path) -> None:
    root = make(kind, str(tmp_path))
    whole = Reading(root)
    name = whole.tables[0].keys.names[0]
    one = replace(whole, key={name: "3"})
    named = {group.group for group in one.groups()}
    (group,) = named
    for table in whole.tables:
        every = read_all(replace(whole, kept=table.name))
        mine = read_all(replace(one, kept=table.name))
        column = name if name in every.schema.names else "__group"
        wanted = 3 if column == name else group
        chosen = [row for row in every.to_pylist() if row[column] == wanted]
        assert bag(mine) == Counter(map(as_text, chosen))


def test_waiting_values_are_those_that_would_be_served(tmp_path: Path) -> None:
    root = make("updates", str(tmp_path))
    waiting = read_all(Reading(root, kept="waiting"))
    served = opened("updates", str(tmp_path)).flush()
    assert bag(waiting.select(["key", "value"])) == bag(served)


def test_rows_of_a_join_are_those_it_was_given(tmp_path: Path) -> None:
    query = opened("joins", str(tmp_path))
    for batch in range(2):
        query.feed(events(query.plan, batch))
    for port, name in enumerate("ab"):
        found = read_all(Reading(str(tmp_path / "checkpoint"), kept=f"stream {port}"))
        given = [
            row[f"s{port}_2"]
            for batch in range(2)
            for row in events(query.plan, batch)[port][0].to_pylist()  # type: ignore[index]
        ]
        assert Counter(found.column(name).to_pylist()) == Counter(given)


@pytest.mark.parametrize("kind", ["windows", "pairs"])
def test_parity_rows_do_not_depend_on_the_budget(kind: str, tmp_path: Path) -> None:
    root = make(kind, str(tmp_path))
    large, small = (read_all(Reading(root, memory=size)) for size in (64 << 20, 4 << 20))
    assert bag(large) == bag(small)


def test_bounded_a_small_budget_is_named_with_what_it_needs(tmp_path: Path) -> None:
    root = make("pairs", str(tmp_path))
    with pytest.raises(BudgetError, match="needs"):
        read_all(Reading(root, memory=20_000))


def test_groups_are_listed_by_their_bytes(tmp_path: Path) -> None:
    root = make("pairs", str(tmp_path))
    listed = Reading(root).groups()
    assert [each.bytes for each in listed] == sorted((each.bytes for each in listed), reverse=True)
    assert Reading(root).groups(3) == listed[:3]
    assert all(each.key.keys() == {"user"} for each in listed)
    sizes = Reading(root).sizes()
    assert sum(each.rows for each in sizes) == sum(each.rows for each in listed)
    assert sum(each.groups for each in sizes) == len(listed)


def fronts_fed(plan: Updates, batches: int = 5) -> tuple[PreQueueOperator, list[pa.RecordBatch]]:
    """Return the arcs of a plan in one piece, after all batches, and the rows they made."""
    assert plan.front is not None
    operator, made = PreQueueOperator(plan.front), []
    for batch in range(batches):
        parts = [part for split in events(plan, batch) for part in split]
        whole = pa.concat_batches(parts)
        columns = [*whole.columns[2:], whole.column(1)]
        made.append(operator.rows(pa.RecordBatch.from_arrays(columns, schema=plan.travels)))
    return operator, made


def test_kept_rows_of_update_joins_are_those_that_can_match(tmp_path: Path) -> None:
    root = make("update joins", str(tmp_path))
    plan = KINDS["update joins"].plan()
    assert isinstance(plan, Updates)
    operator, made = fronts_fed(plan)
    (held,) = operator.states()
    names = [type(node).__name__ for node in operator.nodes]
    states = dict(zip(names, held, strict=True))
    for side in ("left", "right"):
        found = read_all(Reading(root, operator="join 4", kept=side))
        rows = table_of(states["PreQueueJoin"][f"{side}.rows"])
        assert bag(found.drop_columns(["__shard", "__group"])) == bag(rows)
        one = read_all(Reading(root, operator="join 4", kept=side, key={"key": "2"}))
        assert set(one.column("key").to_pylist()) == {2}
    times = read_all(Reading(root, operator="union 2")).column("__last_update").to_pylist()
    assert sorted(times) == sorted(states["PreQueueUnion"]["last"][: len(times)].tolist())
    newest = {row["key"]: row for batch in made for row in batch.to_pylist()}
    waiting = read_all(Reading(root, operator="queue", kept="waiting")).to_pylist()
    assert {row["key"]: row["a"] for row in waiting} == {
        key: row["a"] for key, row in newest.items() if key in {row["key"] for row in waiting}
    }
    assert waiting


def test_tuples_of_update_windows_are_those_that_wait(tmp_path: Path) -> None:
    root = make("update windows", str(tmp_path))
    plan = KINDS["update windows"].plan()
    assert isinstance(plan, Updates)
    _, made = fronts_fed(plan)
    every = {
        (row["key"], row["b"], row["at"]): row["a"] for rows in made for row in rows.to_pylist()
    }
    groups = read_all(Reading(root, operator="windows", kept="groups")).to_pylist()
    assert {(row["key"], row["b"]) for row in groups} == {key[:2] for key in every}
    assert {row["__state"] for row in groups} <= {"waiting", "ready", "idle", "done"}
    tuples = read_all(Reading(root, operator="windows", kept="tuples")).to_pylist()
    instants = pa.array([row["__time"] for row in tuples]).cast(plan.time).to_pylist()
    for row, at in zip(tuples, instants, strict=True):
        assert every[row["key"], row["b"], at] == row["a"]
    assert len(tuples) >= sum(row["__state"] == "waiting" for row in groups) > 0


@pytest.mark.parametrize("kind", ["windows", "pairs", "updates"])
def test_oracle_a_difference_is_that_of_two_bags(kind: str, tmp_path: Path) -> None:
    reading = Reading(make(kind, str(tmp_path)))

    def rows(version: int) -> Counter[tuple[str, str | None, str]]:
        return Counter(
            (found.table.name, row["__g"], as_text({k: v for k, v in row.items() if k != "__g"}))
            for found in replace(reading, version=version).rows()
            for row in _with_groups(found)
        )

    gone, came = rows(3) - rows(5), rows(5) - rows(3)
    found = list(differences(reading, 3, 5))
    for change, wanted in ((-1, gone), (1, came)):
        mine = Counter((e.kept, e.group, e.row) for e in found if e.change == change)
        assert mine == wanted
    assert list(differences(reading, 4, 4)) == []


def _with_groups(found: Any) -> list[dict[str, Any]]:
    from icestream.inspect.state_rows import group_names

    rows = found.rows.to_pylist()
    return [row | {"__g": group} for row, group in zip(rows, group_names(found), strict=True)]


def test_another_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(NotACheckpoint, match="not a checkpoint of Icestream"):
        Checkpoint(str(tmp_path))
    (tmp_path / "notes").write_text("a file, not a folder")
    with pytest.raises(NotACheckpoint, match="not a checkpoint of Icestream"):
        Checkpoint(f"{tmp_path}/notes")


def test_versions_and_tables_that_are_not_there_are_reported(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"has the versions 1, 2, 3, 4, 5, but not 9"):
        read_all(Reading(root, version=9))
    with pytest.raises(DefinitionError, match="did you mean 'view 0'"):
        read_all(Reading(root, operator="view 1"))
    with pytest.raises(DefinitionError, match="no table has the key user; the keys are: key"):
        read_all(Reading(root, key={"user": "1"}))
    with pytest.raises(DefinitionError, match="this column is int64"):
        read_all(Reading(root, key={"key": "blue"}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_schema_reads_back_as_it_was_written(kind: str) -> None:
    state_schema = state_schema_of(KINDS[kind].plan())
    assert read(json.loads(json.dumps(written(state_schema)))) == state_schema


@pytest.mark.parametrize(
    "value",
    [
        {"is": "Popen", "args": "id"},
        {"is": "Path"},
        {"is": "Plan"},
        {"$schema": "AAAA"},
        {"$schema": 3},
        {"$type": "AAAA"},
        {"is": "Windows", "range": 0, "slide": 0},
        {"is": "Nothing", "why": {"is": "eval"}},
        [],
        "Plan",
    ],
)
def test_a_state_schema_names_only_classes_of_the_list(value: Any) -> None:
    with pytest.raises(ValueError, match="state schema"):
        read(value)


def test_states_that_are_pickled_are_not_read() -> None:
    aggregate = Aggregate("user", "value", "longest", parameters=("anything",))
    plan = window_plan("10 seconds", aggregates=[aggregate])
    state_schema = state_schema_of(plan)
    assert isinstance(state_schema, NoSchema)
    assert "pickled" in state_schema.why
    assert read(written(state_schema)) == state_schema


def test_looking_takes_nothing_over(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    running = opened("windows", str(tmp_path))
    before = prints(root)
    assert read_all(Reading(root)).num_rows > 0
    assert verify(Checkpoint(root)).is_fine
    assert Checkpoint(root).kept()
    assert prints(root) == before
    assert running.driver.batch(5, events(running.plan, 5))


def test_bounded_a_group_beyond_memory_is_read(tmp_path: Path) -> None:
    columns = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("asks", pa.bool_())])
    stream = PlanStream.of(columns)
    stored = stream.where("NOT asks").select("key", "value").forever()
    asking = stream.where("asks").select("key", "value AS wanted").window(1)
    made = stored.apply(("key",), lambda left, right: left.difference(right), asking)
    flow = dataflow(made, "changes", columns=(columns,), slack=0)
    query = open_query(flow, str(tmp_path), budget="8 MB", shards=1)
    count = 40_000
    rows = [np.zeros(count, np.int64), np.arange(count), np.zeros(count, np.bool_)]
    instants = [pa.array(np.arange(count)).cast(flow.time), pa.array(np.zeros(count, np.int32))]
    batch = pa.RecordBatch.from_arrays([*instants, *map(pa.array, rows)], schema=flow.batch_schema)
    query.feed([[batch]])
    found = read_all(Reading(str(tmp_path / "checkpoint"), memory=1 << 20, kept="0: left"))
    assert sorted(found.column("value").to_pylist()) == list(range(count))
