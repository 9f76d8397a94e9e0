"""Kernels that several processes need at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
CALL = "import kernels; print(kernels.calling(4), *kernels.calling.stats.cache_hits.values())"


def called_in(folder: Path, processes: int) -> list[str]:
    """Return what processes that start together say of a kernel: its result, and whether loaded."""
    (folder / "kernels.py").write_text(KERNELS)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        "NUMBA_CACHE_DIR": str(folder / "cache"),
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
