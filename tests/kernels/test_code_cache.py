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
from llvmlite import binding  # type: ignore[import-untyped]

from icestream.kernels import code_archive, code_cache

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

OF_KEYS = (
    "import icestream_calling as c; "
    "print(c.calling(4), {key[1][1] for key in c.calling._cache._cache_file._load_index()})"
)


def said(
    sources: Path, cache: Path, added: int, *, call: str = CALL, shipped: Path | None = None
) -> str:
    """Return the result of a kernel in a new process, with 1 behind it if its code was loaded."""
    sources.mkdir(exist_ok=True)
    (sources / "icestream_called.py").write_text(CALLED.replace("ADDED", str(added)))
    (sources / "icestream_calling.py").write_text(CALLING)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(sources), str(shipped or sources), *sys.path]),
        "NUMBA_CACHE_DIR": str(cache),
        # sources that change within a second have stale bytecode
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_DISABLE_JIT": "0",
    }
    command = [sys.executable, "-c", call]
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


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the machine code of the sources that add 1."""
    folder = tmp_path_factory.mktemp("made")
    assert said(folder / "sources", folder / "code", 1, call=OF_KEYS).startswith("10 {")
    return folder / "code"


@pytest.fixture
def shipped(tmp_path: Path, made: Path) -> Path:
    """Return a folder in which the package with machine code is installed."""
    package = tmp_path / "site" / "icestream_kernels"
    shutil.copytree(made, package / "code")
    (package / "__init__.py").touch()
    return tmp_path / "site"


def test_shipped_code_compiles_nothing(tmp_path: Path, shipped: Path) -> None:
    assert said(tmp_path / "b", tmp_path / "own", 1, shipped=shipped) == "10 1"
    assert not list((tmp_path / "own").rglob("*.nbc"))


def test_shipped_code_of_other_sources_is_not_used(tmp_path: Path, shipped: Path) -> None:
    assert said(tmp_path / "b", tmp_path / "own", 2, shipped=shipped) == "12"


def test_an_archive_that_was_changed_is_not_unpacked(tmp_path: Path, made: Path) -> None:
    sent = tmp_path / "sent"
    archive = code_archive.packed([str(made)], os.listdir(made), str(sent))
    assert archive is not None
    receive = f"from icestream.kernels import code_archive as a; a.receive_from({str(sent)!r});"
    # code for this processor, whatever it is, is used where it was sent
    assert said(tmp_path / "b", tmp_path / "own", 1, call=receive + CALL) == "10 1"
    data = bytearray(Path(archive).read_bytes())
    data[data.find(b"ELF")] ^= 1
    Path(archive).write_bytes(data)
    assert said(tmp_path / "c", tmp_path / "other", 1, call=receive + CALL) == "10"
    assert not (tmp_path / "other" / "received").exists()


def test_code_is_made_for_the_baseline_where_the_processor_has_it(made: Path) -> None:
    needed = [binding.get_host_cpu_features().get(each) for each in code_cache._NEEDED]
    expected = "x86-64-v3" if all(needed) else binding.get_host_cpu_name()
    assert said(made.parent / "sources", made, 1, call=OF_KEYS) == f"10 {{{expected!r}}}"


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
