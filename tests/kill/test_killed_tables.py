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
from icestream.testing.crash_runs import staged
from icestream.testing.simulated_disk import SimulatedDisk
from tests.faults.killing import kill_until_done
from tests.fixtures.object_store import ObjectStoreServer
from tests.kill.local_query import SCRIPT, checkpoint, texts

KILLS = 50


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = str(tmp_path_factory.mktemp("undisturbed"))
    with staged():
        query = LocalQuery(SCRIPT.plan, SCRIPT.settings(folder), SimulatedDisk())
        rows = [
            query.flush() if number is None else query.feed(SCRIPT.inputs[number])
            for number in SCRIPT.actions
        ]
    return texts(pa.concat_tables(rows))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("in_store", [False, True], ids=["disk", "store"])
@pytest.mark.parametrize("sink", ["parquet", "delta", "iceberg"])
def test_crash_a_program_with_a_table_is_killed_fifty_times(
    sink: str,
    in_store: bool,
    tmp_path: Path,
    expected: list[str],
    object_store: ObjectStoreServer,
) -> None:
    store = object_store.options if in_store else None
    asked = {"folder": str(tmp_path), "sink": sink, "store": store}
    versions = checkpoint(str(tmp_path / "looking"), store)
    versions.root = checkpoint(str(tmp_path), store).root
    with object_store.failing(0.03, 7) if in_store else nullcontext() as faults:
        if faults is not None:
            faults.delay = 0.02
        found = kill_until_done(
            [sys.executable, "-m", "tests.kill.local_query", json.dumps(asked)],
            steps=lambda: max(versions.versions(), default=0),
            kills=KILLS,
            seed=11,
            longest=1.0,
            early=4.0,
        )
    assert found.kills == KILLS, "the program ended too early"
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["rows"] == expected
    assert seen["in_folder"] == len(expected)
    if not in_store:
        files = [*map(str, (tmp_path / "table").rglob("part-*.parquet"))]
        counted = duckdb.execute("select count(*) from read_parquet(?)", [files])
        assert counted.fetchall() == [(len(expected),)]
