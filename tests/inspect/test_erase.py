from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import CheckpointError, DefinitionError
from icestream.inspect.access.adapter_protocol import as_text
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.erase import erase
from icestream.inspect.state_rows import Reading
from icestream.inspect.verify import verify
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.computation import Computation
from icestream.plan.windows.session import Session
from icestream.runtime.local import LocalQuery, Splits
from icestream.runtime.tables.current_table import NOW, CurrentTable
from icestream.runtime.version.settings import Settings
from icestream.state.files import Files, LocalFiles
from icestream.state.stores.store_files import StoreFiles
from icestream.testing.simulated_disk import Crash, SimulatedDisk
from tests.fixtures.checkpoints import make
from tests.fixtures.dataflow_plans import (
    SECOND,
    best,
    nested,
    recommender,
    running_aggregate,
    self_join,
    user_defined,
)
from tests.fixtures.object_store import in_memory
from tests.fixtures.plans import QuickFiles, window_plan

#: the key that is erased: a number whose bytes occur nowhere else, and a text
SECRET = 0x5EC2_E71D_E471_7E5A
NAME = "Ada Lovelace of London"
NAMED = pa.schema([("key", pa.string())])
_COUNT, _SUM = Aggregate("count", None, "n"), Aggregate("sum", "value", "total")
WINDOWS: Mapping[str, Callable[[], Computation]] = {
    "windows": lambda: window_plan("20 seconds", "5 seconds", keys=NAMED, late="keep"),
    "tumbling": lambda: window_plan("10 seconds", keys=NAMED, aggregates=[_COUNT, _SUM]),
    "objects": lambda: window_plan(
        "20 seconds", keys=NAMED, aggregates=[Aggregate("collect_list", "value", "values")]
    ),
    "sessions": lambda: window_plan(
        keys=NAMED, windows=Session(4 * SECOND), aggregates=[_COUNT, _SUM]
    ),
}
GROUPS: Mapping[str, Callable[[], Computation]] = {
    "groups": running_aggregate,
    "pairs": self_join,
    "best": best,
    "processors": user_defined,
    "nested": nested,
    "now": lambda: running_aggregate("now"),
}
BEFORE, AFTER = 5, 3


def key_of(plan: Computation) -> dict[str, str]:
    return {"key": NAME} if "k0" in plan.batch_schema.names else {"user": str(SECRET)}


def events(plan: Computation, batch: int, *, secret: bool = True) -> Splits:
    """Return a batch of events, a third of them of the secret key, or without these."""
    count, dice = 60, np.random.default_rng([9, batch])
    times = np.sort(dice.integers(batch * 8 * SECOND, (batch + 1) * 8 * SECOND, count))
    times[:2] -= 60 * SECOND * (batch > 2)
    numbers = dice.integers(0, 6, count)
    # the last event, which moves the watermark, is of another key
    hidden = (dice.random(count) < 0.3) & (np.arange(count) < count - 1)
    columns = [pa.array(times).cast(plan.time), pa.array(np.zeros(count, np.int32))]
    for field in list(plan.batch_schema)[2:]:
        if field.name == "k0":
            values = [NAME if h else f"other {n}" for h, n in zip(hidden, numbers, strict=True)]
            columns.append(pa.array(values))
        elif field.name == "s0_0":
            columns.append(pa.array(np.where(hidden, SECRET, numbers)).cast(field.type))
        else:
            columns.append(pa.array(dice.integers(0, 6, count)).cast(field.type))
    whole = pa.RecordBatch.from_arrays(columns, schema=plan.batch_schema)
    return [[whole if secret else whole.filter(pa.array(~hidden))]]


def opened(plan: Computation, folder: Path, files: Files | None = None) -> LocalQuery:
    settings = Settings(
        str(folder / "checkpoint"), str(folder / "local"), 32 << 20, shards=2, codec=None
    )
    return LocalQuery(plan, settings, files or QuickFiles())


def run(
    plan: Computation, folder: Path, batches: range, *, secret: bool = True
) -> list[Counter[str]]:
    """Feed batches; return the rows of each and, at the end, of a flush."""
    query = opened(plan, folder)
    rows = [query.feed(events(plan, number, secret=secret)) for number in batches]
    if batches.start:
        rows.append(query.flush())
    query.close()
    return [Counter(as_text(row) for row in each.to_pylist()) for each in rows]


def files_with(folder: Path) -> list[str]:
    """Return the files that contain the secret key."""
    needles = NAME.encode(), struct.pack("<q", SECRET), str(SECRET).encode()
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(each in path.read_bytes() for each in needles)
    ]


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", [*WINDOWS, *GROUPS])
def test_oracle_an_erased_key_is_in_no_file_and_others_do_not_notice(
    kind: str, tmp_path: Path
) -> None:
    """The other run never saw the key before; both go on with the same events."""
    plan = {**WINDOWS, **GROUPS}[kind]
    first, later = range(BEFORE), range(BEFORE, BEFORE + AFTER)
    run(plan(), tmp_path / "a", first)
    run(plan(), tmp_path / "b", first, secret=False)
    root = tmp_path / "a" / "checkpoint"
    assert files_with(root)
    done = erase(Reading(str(root)), key_of(plan()))
    assert done.groups >= 1
    assert files_with(root) == []
    report = verify(Checkpoint(str(root)))
    assert report.is_fine, report
    assert Checkpoint(str(root)).versions == [done.version]
    assert run(plan(), tmp_path / "a", later) == run(plan(), tmp_path / "b", later)
    assert verify(Checkpoint(str(root))).is_fine


def test_a_key_without_state_is_erased_too(tmp_path: Path) -> None:
    plan = WINDOWS["windows"]()
    run(plan, tmp_path, range(3), secret=False)
    root = str(tmp_path / "checkpoint")
    assert erase(Reading(root), {"key": NAME}).groups == 0
    assert erase(Reading(root), {"key": "other 1"}).groups == 1
    assert verify(Checkpoint(root)).is_fine


def test_what_a_killed_program_left_hidden_is_erased_and_empty_folders_stay(tmp_path: Path) -> None:
    plan = WINDOWS["windows"]()
    run(plan, tmp_path, range(3))
    root = tmp_path / "checkpoint"
    (root / "results" / ".half.rows").write_text(NAME)
    (root / "exchange" / "00000001").mkdir(parents=True)
    erase(Reading(str(root)), key_of(plan))
    assert files_with(root) == []
    assert (root / "exchange" / "00000001").is_dir()


def test_rows_of_a_now_table_are_erased(tmp_path: Path) -> None:
    plan = GROUPS["groups"]()
    run(plan, tmp_path, range(3))
    root = tmp_path / "checkpoint"
    table = CurrentTable.of(LocalFiles(), str(root))
    schema = pa.schema([("user", pa.int64()), ("n", pa.int64())])
    for version, users in enumerate(([1, SECRET], [SECRET, 2])):
        rows = pa.table({"user": users, "n": [version, version]}, schema=schema)
        table.apply(version, [rows], schema, ["user"])
    assert any(name.startswith(NOW) for name in files_with(root))
    done = erase(Reading(str(root)), key_of(plan))
    assert (done.rows, files_with(root)) == (1, [])
    [left] = table.read(0)
    assert left.sort_by("user").to_pylist() == [{"user": 1, "n": 0}, {"user": 2, "n": 1}]
    table.apply(done.version, [pa.table({"user": [1], "n": [9]}, schema=schema)], schema, ["user"])
    [after] = table.read(0)
    assert after.sort_by("user").to_pylist() == [{"user": 1, "n": 9}, {"user": 2, "n": 1}]


def test_a_key_in_rows_of_other_groups_is_not_erased(tmp_path: Path) -> None:
    plan = recommender()
    run(plan, tmp_path, range(3))
    root = tmp_path / "checkpoint"
    before = sorted(os.listdir(root / "segments"))
    with pytest.raises(CheckpointError, match=r"rows of other groups .* nothing was erased"):
        erase(Reading(str(root)), key_of(plan))
    assert set(before) <= set(os.listdir(root / "segments"))
    assert verify(Checkpoint(str(root))).is_fine


def test_what_cannot_be_erased_says_why(tmp_path: Path) -> None:
    for kind, why in {
        "joins": "defers results",
        "panes": "events of many keys together",
        "updates": "keeps other state",
        "events": "cannot be rewritten",
        "ranges": "cannot be rewritten",
    }.items():
        root = make(kind, str(tmp_path / kind), 2)
        with pytest.raises(CheckpointError, match=why):
            erase(Reading(root), {"key": "1"})
    with pytest.raises(DefinitionError, match=r"no state has the key name; the keys are: user"):
        erase(Reading(make("groups", str(tmp_path / "groups"), 2)), {"name": "1"})


def test_a_batch_that_may_not_have_reached_its_sink_stops_an_erasure(tmp_path: Path) -> None:
    plan = WINDOWS["tumbling"]()
    run(plan, tmp_path, range(2))
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    (tmp_path / "spark" / "commits").mkdir()
    root = str(tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match=r"batch 1 .* may not have reached its sink"):
        erase(Reading(root), {"key": NAME})
    (tmp_path / "spark" / "commits" / "1").touch()
    assert erase(Reading(root), {"key": NAME}).groups == 1


def test_a_key_in_a_store_is_in_no_object_afterwards(tmp_path: Path) -> None:
    plan, root = WINDOWS["windows"](), "s3://erased/checkpoint"
    files = StoreFiles(copies=str(tmp_path / "copies"), connect=in_memory)
    settings = Settings(root, str(tmp_path / "local"), 32 << 20, shards=2, codec=None)
    query = LocalQuery(plan, settings, files, parcel_files=LocalFiles())
    for number in range(BEFORE):
        query.feed(events(plan, number))
    query.close()
    bucket = in_memory("s3://erased", ())
    assert any(NAME.encode() in bucket.get(each).data for each in bucket.walk(""))
    assert erase(Reading(root, files=files), {"key": NAME}).files > 0
    assert not any(NAME.encode() in bucket.get(each).data for each in bucket.walk(""))


def test_crash_every_step_of_an_erasure(tmp_path: Path) -> None:
    plan = WINDOWS["sessions"]()
    run(plan, tmp_path, range(3))
    root = str(tmp_path / "checkpoint")
    whole = SimulatedDisk()
    for folder, _, names in os.walk(root):
        for each in names:
            whole.put(f"{folder}/{each}", Path(folder, each).read_bytes())
    for step in range(1, 1000):
        disk = whole.after_crash("keep", crash_at=step)
        try:
            erase(Reading(root, files=disk), {"key": NAME})
            break
        except Crash:
            after = disk.after_crash("drop")
        assert verify(Checkpoint(root, after)).is_fine
        if step % 7 == 0:
            erase(Reading(root, files=after), {"key": NAME})
            assert len(Checkpoint(root, after).versions) == 1
    assert step > 5
    assert len(Checkpoint(root, disk).versions) == 1
