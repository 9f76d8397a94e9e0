"""Programs that write tables, killed with SIGKILL at random moments: 0 rows lost, 0 doubled."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from icestream.runtime.local import LocalQuery
from icestream.testing.simulated_disk import SimulatedDisk
from tests.faults.killing import kill_until_done
from tests.fixtures.object_store import ObjectStoreServer
from tests.kill.local_query import checkpoint, texts
from tests.suites.crash_runs import Script, staged


def expected(folder: Path, script: Script) -> list[str]:
    with staged():
        query = LocalQuery(script.plan, script.settings(str(folder)), SimulatedDisk())
        rows = [
            query.flush() if number is None else query.feed(script.inputs[number])
            for number in script.actions
        ]
    return texts(pa.concat_tables(rows))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("in_store", "kills", "batches"), [(False, 50, 400), (True, 20, 150)], ids=["disk", "store"]
)
@pytest.mark.parametrize("sink", ["parquet", "delta", "iceberg"])
def test_crash_a_program_with_a_table_is_killed_again_and_again(
    sink: str,
    in_store: bool,
    kills: int,
    batches: int,
    tmp_path: Path,
    object_store: ObjectStoreServer,
) -> None:
    store = object_store.options if in_store else None
    asked = {"folder": str(tmp_path), "sink": sink, "store": store, "batches": batches}
    versions = checkpoint(str(tmp_path / "looking"), store)
    versions.root = checkpoint(str(tmp_path), store).root
    with object_store.failing(0.03, 7) if in_store else nullcontext() as faults:
        if faults is not None:
            faults.delay = 0.02
        found = kill_until_done(
            [sys.executable, "-m", "tests.kill.local_query", json.dumps(asked)],
            steps=lambda: max(versions.versions(), default=0),
            kills=kills,
            seed=11,
            longest=1.0,
            early=2.0,
            patience=1200,
        )
    assert found.kills == kills, "the program ended too early"
    seen = json.loads((tmp_path / "seen.json").read_text())
    rows = expected(tmp_path / "undisturbed", Script(batches=batches, events=12))
    assert seen["rows"] == rows
    assert seen["in_folder"] == len(rows)
    if not in_store:
        files = [*map(str, (tmp_path / "table").rglob("part-*.parquet"))]
        counted = duckdb.execute("select count(*) from read_parquet(?)", [files])
        assert counted.fetchall() == [(len(rows),)]
