"""Machine code is found by the content of sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import pytest

from icestream.kernels import code_cache

CALLED = """
from icestream.kernels.compile import kernel

@kernel
def called(n):
    return n + ADDED
"""
CALLING = """
from icestream.kernels.compile import kernel
from icestream_called import called

@kernel
def calling(n):
    return called(n) * 2
"""
CALL = "import icestream_calling as c; print(c.calling(4), *c.calling.stats.cache_hits.values())"


def said(sources: Path, cache: Path, added: int) -> str:
    """Return the result of a kernel in a new process, with 1 behind it if its code was loaded."""
    sources.mkdir(exist_ok=True)
    (sources / "icestream_called.py").write_text(CALLED.replace("ADDED", str(added)))
    (sources / "icestream_calling.py").write_text(CALLING)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(sources), *sys.path]),
        "NUMBA_CACHE_DIR": str(cache),
        # sources that change within a second have stale bytecode
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_DISABLE_JIT": "0",
    }
    command = [sys.executable, "-c", CALL]
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_a_copy_of_the_sources_compiles_nothing(tmp_path: Path) -> None:
    assert said(tmp_path / "a", tmp_path / "code", 1) == "10"
    assert said(tmp_path / "b", tmp_path / "code", 1) == "10 1"
    shutil.move(tmp_path / "code", tmp_path / "moved")
    assert said(tmp_path / "c", tmp_path / "moved", 1) == "10 1"


def test_a_kernel_follows_the_kernels_it_calls(tmp_path: Path) -> None:
    assert said(tmp_path / "a", tmp_path / "code", 1) == "10"
    assert said(tmp_path / "a", tmp_path / "code", 2) == "12"
    assert said(tmp_path / "a", tmp_path / "code", 1) == "10 1"


def test_a_folder_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    own = tmp_path / "icestream" / "kernels"
    folder = code_cache.code_folder.__wrapped__
    assert folder() == str(own)
    own.chmod(0o777)
    assert folder() == str(tmp_path / "temporary" / f"icestream-kernels-{os.getuid()}")
    (tmp_path / "temporary" / f"icestream-kernels-{os.getuid()}").chmod(0o777)
    assert folder() is None


def test_code_of_other_sources_is_deleted_after_some_time(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    os.utime(tmp_path / "old", (0, 0))
    code_cache._delete_old(str(tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == ["new"]
