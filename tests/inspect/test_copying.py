"""Backups and clones of checkpoints whose query runs."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icestream.core.errors import CheckpointError
from icestream.inspect import copying
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.copying import copy_checkpoint
from icestream.inspect.verify import verify
from icestream.runtime.local import LocalQuery
from icestream.state.files import LocalFiles
from icestream.state.versions.commits import VersionStore
from tests.suites.crash_runs import Script, staged

SCRIPT = Script(batches=12)


def opened(folder: Path) -> LocalQuery:
    settings = replace(SCRIPT.settings(f"{folder}-local"), root=f"{folder}/icestream")
    VersionStore(LocalFiles(), settings.root).identity()
    return LocalQuery(SCRIPT.plan, settings)


def act(query: LocalQuery, action: int) -> list[str]:
    number = SCRIPT.actions[action]
    driver = query.driver
    made = driver.flush() if number is None else driver.batch(number, SCRIPT.inputs[number])
    return sorted(map(repr, query.rows(made).to_pylist()))


def spark_files(folder: Path, batches: int) -> None:
    for part in ("offsets", "commits", "sources/0"):
        (folder / "spark" / part).mkdir(parents=True, exist_ok=True)
        for batch in range(batches):
            (folder / "spark" / part / str(batch)).write_text(part)
    (folder / "spark" / "metadata").write_text("{}")


def digest(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_a_copy_of_a_live_checkpoint_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged():
        query = opened(tmp_path / "original")
        expected = [act(query, action) for action in range(4)]
        spark_files(tmp_path / "original", 9)
        copied: list[str] = []
        one = copying.copy_file

        def while_it_runs(files: Any, source: str, copy: Any, target: str) -> int:
            # the query goes on between two files, until the first try has lost its version
            if len(copied) % 4 == 3 and len(expected) < 10:
                expected.append(act(query, len(expected)))
            copied.append(source)
            return one(files, source, copy, target)

        monkeypatch.setattr(copying, "copy_file", while_it_runs)
        done = copy_checkpoint(str(tmp_path / "original"), str(tmp_path / "copy"))
        assert len(expected) == 10
        assert 4 < done.version <= 10
        assert done.files <= len(copied)
        assert verify(Checkpoint(str(tmp_path / "copy"))).is_fine
        assert {p.name for p in (tmp_path / "copy/spark/sources/0").iterdir()} == set("012345678")
        last = Checkpoint(str(tmp_path / "copy")).commit().batch
        assert last is not None
        for part in ("offsets", "commits"):
            names = {int(path.name) for path in (tmp_path / "copy/spark" / part).iterdir()}
            assert names == set(range(min(last, 8) + 1))
        # both go on, each by itself
        expected += [act(query, action) for action in range(10, len(SCRIPT.actions))]
        restored = opened(tmp_path / "copy")
        again = restored.rows(restored.driver.last_again())
        assert sorted(map(repr, again.to_pylist())) == expected[done.version - 1]
        for action in range(done.version, len(SCRIPT.actions)):
            assert act(restored, action) == expected[action]


def test_copying_changes_no_byte_of_the_original(tmp_path: Path) -> None:
    with staged():
        query = opened(tmp_path / "original")
        for action in range(3):
            act(query, action)
        before = digest(tmp_path / "original")
        copy_checkpoint(str(tmp_path / "original"), str(tmp_path / "copy"))
        assert digest(tmp_path / "original") == before
        act(query, 3)


def test_a_backup_keeps_the_identity_and_a_clone_gets_its_own(tmp_path: Path) -> None:
    with staged():
        act(opened(tmp_path / "original"), 0)
    for name, clone in (("backup", False), ("clone", True)):
        copy_checkpoint(str(tmp_path / "original"), str(tmp_path / name), clone=clone)
    own, backup, other = (
        VersionStore(LocalFiles(), f"{tmp_path}/{name}/icestream").identity()
        for name in ("original", "backup", "clone")
    )
    assert own == backup
    assert own != other


def test_a_copy_does_not_replace_a_folder(tmp_path: Path) -> None:
    with staged():
        act(opened(tmp_path / "original"), 0)
    with pytest.raises(CheckpointError, match="already exists"):
        copy_checkpoint(str(tmp_path / "original"), str(tmp_path))


def test_half_a_copy_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with staged():
        act(opened(tmp_path / "original"), 0)

    def full(*_: object, **__: object) -> list[int]:
        msg = "the disk is full"
        raise OSError(msg)

    monkeypatch.setattr(copying, "copy_commits", full)
    with pytest.raises(OSError, match="full"):
        copy_checkpoint(str(tmp_path / "original"), str(tmp_path / "copy"))
    with pytest.raises(CheckpointError, match="has no version yet"):
        Checkpoint(str(tmp_path / "copy")).commit()


def test_marks_of_versions_after_the_copy_are_left_out(tmp_path: Path) -> None:
    with staged():
        act(opened(tmp_path / "original"), 0)
    marks = tmp_path / "original/icestream/delivered/0"
    marks.mkdir(parents=True)
    for version in (0, 1, 7):
        (marks / f"{version:012d}").touch()
    copy_checkpoint(str(tmp_path / "original"), str(tmp_path / "copy"))
    copied = (tmp_path / "copy/icestream/delivered/0").iterdir()
    assert [path.name for path in copied] == [f"{0:012d}"]
