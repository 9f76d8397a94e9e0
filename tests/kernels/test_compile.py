"""Kernels that several processes need at once, and kernels that are not compiled."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from icestream.kernels import compile as compile_

KERNELS = """
from icestream.kernels.compile import kernel

@kernel
def called(n):
    total = 0
    for i in range(n):
        total += i * i
    return total

@kernel
def calling(n):
    return called(n) + called(n + 1)
"""
ROOT = Path(__file__).resolve().parents[2]
#: a few of those that `make test-kernels-plain` runs
SAMPLE = ("test_addresses.py", "test_prefetch.py", "test_field_words.py", "queue/test_pages.py")
UNCOMPILED = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
CALL = "import kernels; print(kernels.calling(4), *kernels.calling.stats.cache_hits.values())"


def called_in(folder: Path, processes: int) -> list[str]:
    """Return what processes that start together say of a kernel: its result, and whether loaded."""
    (folder / "kernels.py").write_text(KERNELS)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        "NUMBA_CACHE_DIR": str(folder / "cache"),
        "NUMBA_DISABLE_JIT": "0",
    }
    command = [sys.executable, "-c", CALL]
    running = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    return sorted(each.communicate(timeout=120)[0].strip() for each in running)


def test_a_kernel_is_compiled_by_one_process(tmp_path: Path) -> None:
    assert called_in(tmp_path, 3) == ["44", "44 1", "44 1"]


def test_without_a_lock_all_the_same(tmp_path: Path) -> None:
    assert called_in(tmp_path, 1) == ["44"]
    locks = list(tmp_path.glob("cache/**/*.lock"))
    assert sorted(lock.name for lock in locks) == ["called.lock", "calling.lock"]
    for lock in locks:
        lock.unlink()
        lock.mkdir()
    assert called_in(tmp_path, 1) == ["44 1"]


def test_a_stopped_process_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_, "LONGEST_WAIT", 0.1)
    made = SimpleNamespace(stats=SimpleNamespace(cache_path=str(tmp_path)), py_func=called_in)
    with (tmp_path / "called_in.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with compile_._locked(made):
            assert (tmp_path / "called_in.lock").exists()


def test_parity_kernels_pass_their_tests_uncompiled() -> None:
    tests = [str(ROOT / "tests" / "kernels" / name) for name in SAMPLE]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, *tests], cwd=ROOT, env=UNCOMPILED, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_plain_kernel_is_a_python_function() -> None:
    program = """
import numpy as np
from icestream.kernels.compile import kernel, lean_kernel

@kernel
def doubled(x):
    return x * np.uint64(2)

@lean_kernel
def ratio(x, y):
    return x // y

assert doubled.__wrapped__(np.uint64(3)) == 6
print(doubled(np.uint64(2**63 + 1)))
try:
    ratio(np.int64(1), np.int64(0))
except ArithmeticError:
    print("refused")
"""
    command = [sys.executable, "-W", "error", "-c", program]
    run = subprocess.run(command, env=UNCOMPILED, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["2", "refused"]
