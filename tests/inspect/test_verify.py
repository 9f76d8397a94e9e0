from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from bench.safety.verify import missed, targets
from icestream.core.errors import CheckpointError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.repair import DROPPED, plan_repair, repair_copy, repair_in_place
from icestream.inspect.verify import DELIVERED, verify
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.runtime.tables.current_table import CurrentTable
from icestream.runtime.version.end_mark import MARK
from icestream.state.files import LocalFiles
from icestream.state.versions.commits import COMMITS, IDENTITY, PLAN, SEGMENTS, VersionStore
from icestream.state.versions.ownership import TakenOver
from icestream.testing.sources import StreamShape, batches_of, generate
from tests.fixtures.checkpoints import KINDS, events, make, opened
from tests.fixtures.plans import open_query, window_plan


def prints(root: str) -> dict[str, str]:
    return {
        os.path.relpath(os.path.join(folder, name), root): hashlib.sha256(
            Path(folder, name).read_bytes()
        ).hexdigest()
        for folder, _, names in os.walk(root)
        for name in names
    }


def flip(path: str, place: int = 100) -> None:
    data = bytearray(Path(path).read_bytes())
    data[place % len(data)] ^= 1
    Path(path).write_bytes(bytes(data))


def newest_segment(root: str) -> str:
    """Return a segment that only the last version has."""
    commit = Checkpoint(root).commit()
    return f"{root}/{SEGMENTS}/{commit.added[0].info.name}"


def commit_file(root: str, version: int) -> str:
    return VersionStore(LocalFiles(), root).path(version)


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_every_kind_verifies(kind: str, tmp_path: Path) -> None:
    root = make(kind, str(tmp_path))
    before = prints(root)
    report = verify(Checkpoint(root))
    assert report.findings == []
    assert report.intact[-2:] == [4, 5]
    assert report.rows
    assert prints(root) == before


def test_every_flipped_byte_of_every_kind_of_file_is_found(tmp_path: Path) -> None:
    root = make("tumbling", str(tmp_path))
    for target in targets("tumbling", root):
        flips, commands, lost = missed(target, root, 1009)
        assert flips > 0
        assert commands >= flips // 1009
        assert lost == []


@pytest.mark.parametrize("kind", ["windows", "pairs", "updates"])
def test_a_missing_segment_is_named_with_the_version_that_needs_it(
    kind: str, tmp_path: Path
) -> None:
    root = make(kind, str(tmp_path))
    path = newest_segment(root)
    os.unlink(path)
    report = verify(Checkpoint(root))
    assert [(finding.path, finding.versions) for finding in report.findings] == [(path, (5,))]
    assert "missing" in report.findings[0].what
    assert 5 not in report.intact
    assert 4 in report.intact


def test_raw_events_of_fields_without_an_inverse_verify(tmp_path: Path) -> None:
    most = [Aggregate("max", "value", "most")]
    plan = window_plan("20 seconds", "5 seconds", aggregates=most, store="tuples")
    query = open_query(plan, str(tmp_path))
    for batch in batches_of(
        generate(plan, StreamShape(events=200, batches=4, groups=5, aborts=0), 1)
    ):
        query.feed(batch)
    query.close()
    report = verify(Checkpoint(str(tmp_path / "checkpoint")))
    assert not report.findings
    assert report.rows


def test_a_missing_commit_between_others_is_damage(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    os.unlink(commit_file(root, 3))
    report = verify(Checkpoint(root))
    assert commit_file(root, 3) in {finding.path for finding in report.findings}


def test_damage_in_a_table_of_what_holds_is_named_with_its_versions(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    table = CurrentTable.of(LocalFiles(), root)
    for version in range(1, 6):
        rows = pa.table({"k": [1, version], "n": [version, version]})
        table.apply(version, [rows], rows.schema, ["k"])
    assert verify(Checkpoint(root)).is_fine
    older, newest = table.manifest(4), table.manifest()
    assert older is not None
    assert newest is not None
    (fresh,) = newest.names - older.names
    for name, versions in ((fresh, (5,)), (newest.name, (5,))):
        path = f"{table.folder}/{name}"
        with open(path, "r+b") as file:
            file.seek(20)
            byte = file.read(1)
            file.seek(20)
            file.write(bytes([byte[0] ^ 4]))
        found = [(each.path, each.versions) for each in verify(Checkpoint(root)).findings]
        assert (path, versions) in found
    os.unlink(f"{table.folder}/{min(older.names)}")
    paths = [each.path for each in verify(Checkpoint(root)).findings]
    assert f"{table.folder}/{min(older.names)}" in paths


def test_a_file_under_the_name_of_another_is_damage(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    first, second = sorted(os.listdir(f"{root}/{SEGMENTS}"))[-2:]
    shutil.copy(f"{root}/{SEGMENTS}/{first}", f"{root}/{SEGMENTS}/{second}")
    (finding,) = verify(Checkpoint(root)).findings
    assert finding.path == f"{root}/{SEGMENTS}/{second}"
    assert "another segment" in finding.what


def test_what_no_version_names_counts_for_nothing(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    Path(root, SEGMENTS, "0000000099-00000000000000aa.seg").write_bytes(b"left over")
    Path(root, "history").mkdir()
    Path(root, "history", "progress.jsonl").write_bytes(b"not json")
    report = verify(Checkpoint(root))
    assert report.is_fine
    assert len(report.ignored) == 1


def test_nothing_is_repaired_unasked(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    flip(newest_segment(root))
    before = prints(root)
    found = plan_repair(Checkpoint(root))
    assert found.version == 4
    assert found.lost[:2] == ["version 5", "batch 4"]
    assert any("events that were counted" in each for each in found.lost)
    assert prints(root) == before


def _in_place(root: str, target: str) -> str:
    del target
    checkpoint = Checkpoint(root)
    repair_in_place(checkpoint, plan_repair(checkpoint))
    return root


def _copy(root: str, target: str) -> str:
    checkpoint = Checkpoint(root)
    before = prints(root)
    repair_copy(checkpoint, plan_repair(checkpoint), target)
    assert prints(root) == before
    return target


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", ["windows", "events", "rows", "sessions", "pairs", "joins"])
@pytest.mark.parametrize("mend", [_in_place, _copy])
def test_a_query_goes_on_from_a_repaired_checkpoint(
    kind: str, mend: Callable[[str, str], str], tmp_path: Path
) -> None:
    whole, broken = str(tmp_path / "whole"), str(tmp_path / "broken")
    root = make(kind, broken)
    flip(newest_segment(root), 40)
    mended = mend(root, str(tmp_path / "mended" / "checkpoint"))
    assert verify(Checkpoint(mended)).is_fine
    assert Checkpoint(mended).versions[-1] == 4
    query, other = opened(kind, os.path.dirname(mended)), opened(kind, whole)
    assert query.next_batch == 4
    for batch in range(4):
        other.feed(events(other.plan, batch))
    for batch in (4, 5, 6):
        mine, theirs = (each.feed(events(each.plan, batch)) for each in (query, other))
        assert mine.num_rows == theirs.num_rows
        assert sorted(map(str, mine.to_pylist())) == sorted(map(str, theirs.to_pylist()))
    assert verify(Checkpoint(mended)).is_fine


def test_damage_that_costs_no_version_is_dropped_alone(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    mark = f"{root}/{DELIVERED}/0/{5:012d}"
    LocalFiles().put(mark, MARK)
    flip(mark)
    flip(f"{root}/{PLAN}")
    found = plan_repair(Checkpoint(root))
    assert found.version == 5
    assert found.dropped == sorted([mark, f"{root}/{PLAN}"])
    assert any("the plan" in each for each in found.lost)
    repair_in_place(Checkpoint(root), found)
    assert verify(Checkpoint(root), state=False).findings[0].what == (
        "the plan of the checkpoint is missing"
    )
    assert opened("windows", str(tmp_path)).next_batch == 5
    assert verify(Checkpoint(root)).is_fine


def test_a_damaged_identity_is_named_and_what_follows_from_its_loss(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    VersionStore(LocalFiles(), root).make_identity("ab" * 16)
    assert verify(Checkpoint(root)).is_fine
    flip(f"{root}/{IDENTITY}", 20)
    (finding,) = verify(Checkpoint(root)).findings
    assert finding.path == f"{root}/{IDENTITY}"
    found = plan_repair(Checkpoint(root))
    assert (found.version, found.dropped) == (5, [finding.path])
    assert ["--clone" in each for each in found.lost] == [True]


def test_a_checkpoint_without_an_intact_version_cannot_be_repaired(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path), batches=1)
    flip(commit_file(root, 1))
    found = plan_repair(Checkpoint(root))
    assert found.version is None
    assert found.lost == ["no version is intact: nothing can be resumed"]
    with pytest.raises(CheckpointError, match="cannot be repaired"):
        repair_in_place(Checkpoint(root), found)


def test_crash_a_repair_in_place_can_be_run_again(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    flip(newest_segment(root))
    flip(commit_file(root, 4))
    renames = []

    class Stopping(LocalFiles):
        def rename(self, source: str, target: str) -> None:
            renames.append(source)
            if len(renames) == 2:
                raise KeyboardInterrupt
            super().rename(source, target)

    checkpoint = Checkpoint(root, Stopping())
    with pytest.raises(KeyboardInterrupt):
        repair_in_place(checkpoint, plan_repair(checkpoint))
    checkpoint = Checkpoint(root)
    found = plan_repair(checkpoint)
    assert found.version == 3
    repair_in_place(checkpoint, found)
    assert verify(Checkpoint(root)).is_fine
    moved = [name for name in os.listdir(f"{root}/{DROPPED}/{COMMITS}") if name[0] != "."]
    assert sorted(moved) == ["000000000004-00000001.json", "000000000005-00000001.json"]
    assert VersionStore(LocalFiles(), root).versions() == [1, 2, 3]


def test_a_query_that_runs_on_a_repaired_checkpoint_cannot_commit(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    running = opened("windows", str(tmp_path))
    flip(commit_file(root, 5))
    checkpoint = Checkpoint(root)
    repair_in_place(checkpoint, plan_repair(checkpoint))
    with pytest.raises(TakenOver, match=r"icestream state repair .* from version 4"):
        running.driver.batch(5, events(running.plan, 5))
    assert verify(Checkpoint(root)).is_fine
    resumed = opened("windows", str(tmp_path))
    resumed.driver.batch(4, events(resumed.plan, 4))
    assert resumed.driver.last is not None
    assert resumed.driver.last.version == 5
    assert verify(Checkpoint(root)).is_fine


def test_a_repaired_copy_has_the_takeovers_of_its_versions(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    for number in (5, 6):
        query = opened("windows", str(tmp_path))
        query.driver.batch(number, events(query.plan, number))
        query.close()
    flip(commit_file(root, 7))
    target = f"{tmp_path}/copy"
    repair_copy(Checkpoint(root), plan_repair(Checkpoint(root)), target)
    assert verify(Checkpoint(target)).is_fine
    assert Checkpoint(target).versions[-1] == 6
    # the original is left alone
    assert VersionStore(LocalFiles(), root).versions()[-1] == 7
