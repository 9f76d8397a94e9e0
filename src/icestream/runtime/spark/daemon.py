"""The process from which Spark forks Python workers; it loads the kernels before the first fork.

Idea: forked workers share compiled kernels, pyarrow and numpy instead of loading them again. A
worker keeps memory that it frees; otherwise the arrays of every batch would be mapped, cleared and
returned again, a tenth of a task's time (`runtime.version.process_memory` returns what is beyond
its promise). A worker that Spark no longer needs exits silently. On a cluster, machine code that
the driver sent lies in the working folder. Set through `spark.python.daemon.module`.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from typing import Any
from zipimport import zipimporter

from pyspark import daemon

#: milliseconds that Arrow's allocator keeps freed pages; it reads this once, when it is loaded
_PURGE_DELAY = ("MIMALLOC_PURGE_DELAY", "10000")
#: parameters of malloc: the smallest block that is mapped separately, and the most free memory kept
_MMAP_THRESHOLD = -3
_TRIM_THRESHOLD = -1


def keep_freed_memory() -> None:
    """Let the daemon and the workers it forks keep memory they free, until a task gives it back."""
    os.environ.setdefault(*_PURGE_DELAY)
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, 16 << 20)
        library.mallopt(_TRIM_THRESHOLD, 64 << 20)


def ending_quietly(worker: Callable[..., int]) -> Callable[..., int]:
    """Return a worker for the daemon that exits quietly when its connection is closed."""

    def run(*args: Any) -> int:
        try:
            return worker(*args)
        except BrokenPipeError:
            return 1

    return run


def keep_zip_directories() -> None:
    """Let workers keep the directories of PySpark's archives, which Spark rereads for each task."""
    setattr(zipimporter, "invalidate_caches", lambda _: None)  # noqa: B010 - a method


if __name__ == "__main__":
    keep_freed_memory()
    # these load Arrow
    from icestream.kernels.code_archive import receive_from
    from icestream.runtime.spark import warm_up

    daemon.worker = ending_quietly(daemon.worker)
    keep_zip_directories()
    receive_from(os.getcwd())
    warm_up.kernels()
    # a worker collects garbage after every task; freeze what is loaded here, it is never garbage
    gc.collect()
    gc.freeze()
    daemon.manager()
