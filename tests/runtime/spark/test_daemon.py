from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile
from zipimport import zipimporter

import pytest

from icestream.runtime.spark.daemon import ending_quietly, keep_zip_directories


def test_a_worker_that_nobody_listens_to_ends_without_a_word() -> None:
    def deserted(*_: object) -> int:
        raise BrokenPipeError

    assert ending_quietly(deserted)("socket", True) == 1


def test_a_worker_that_fails_otherwise_says_so() -> None:
    def broken(*_: object) -> int:
        msg = "no memory"
        raise OSError(msg)

    with pytest.raises(OSError, match="no memory"):
        ending_quietly(broken)()
    assert ending_quietly(lambda *taken: len(taken))(1, 2) == 2


def test_workers_do_not_read_the_directories_of_archives_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "some.zip")
    with ZipFile(path, "w") as archive:
        archive.writestr("first.py", "")
    importer = zipimporter(path)
    with ZipFile(path, "a") as archive:
        archive.writestr("second.py", "")
    # so that it is as before after the test
    monkeypatch.setattr(zipimporter, "invalidate_caches", zipimporter.invalidate_caches)
    keep_zip_directories()
    importer.invalidate_caches()
    assert importer.find_spec("first") is not None
    assert importer.find_spec("second") is None
