from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from icestream.core.errors import StorageError
from tests.faults.failing_disk import FailingDisk


def test_a_full_disk_is_reported_as_one(tmp_path: Path) -> None:
    full = pickle.loads(pickle.dumps(FailingDisk(full=1.0)))
    with pytest.raises(StorageError, match="the disk is full; free space on it, then restart"):
        full.put(str(tmp_path / "file"), b"data")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_mishaps_is_the_disk(tmp_path: Path) -> None:
    assert FailingDisk(slow=1.0, longest=0.001).put(str(tmp_path / "file"), b"data")
    assert (tmp_path / "file").read_bytes() == b"data"
