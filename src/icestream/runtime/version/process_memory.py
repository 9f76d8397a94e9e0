"""What the processes of a query take: measured at their start, and after every task.

Idea: a process has a constant, the memory it takes before it runs its first task: interpreter,
libraries, compiled kernels. What the query adds beyond it is measured after each task and reported
next to the budget. Freed memory that Arrow and malloc keep for later is given back after a task, if
it is more than the task may take anyway: the next one fills it again, and new pages cost more than
kept ones.

Cost: one small file of /proc per task; giving back costs a few milliseconds, and only if a process
has grown by `KEPT_FREE` more than it was promised.

Limits: Linux; elsewhere nothing is measured. Pages that forked workers share count in each of them,
and in their constants.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

#: bytes by which a process may have outgrown what it was promised before freed memory is given back
KEPT_FREE = 48 << 20

#: bytes of this process before its first task, by process: forked workers measure their own
_BASE: dict[int, int] = {}


def resident() -> int:
    """Return the bytes of this process in memory; 0 if that is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def base() -> int:
    """Return the bytes of this process when it ran its first task."""
    return _BASE.setdefault(os.getpid(), resident())


def measured(promised: int) -> dict[str, Any]:
    """Give back freed memory and report this process, whose shards may hold `promised` bytes."""
    if resident() - base() > promised + KEPT_FREE:
        pa.default_memory_pool().release_unused()
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)
    return {
        "process": f"{socket.gethostname()}:{os.getpid()}",
        "base": base(),
        "resident": resident(),
    }


def processes_report(measurements: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return the sums over the distinct processes of a version."""
    found = {each["process"]: each for each in measurements}
    constant = sum(each["base"] for each in found.values())
    added = sum(max(0, each["resident"] - each["base"]) for each in found.values())
    return {
        "processes": len(found),
        "processConstantBytes": constant,
        "processAddedBytes": added,
    }
