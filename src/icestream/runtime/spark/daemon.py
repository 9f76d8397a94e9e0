"""The process that Spark forks Python workers from, with the kernels loaded before the first fork.

Idea: a worker that is forked from here shares compiled kernels, pyarrow and numpy with all others
instead of loading them again. Memory that a worker frees stays with it: the arrays of a batch would
be mapped, cleared and given back again and again. A worker that Spark has let go of ends without a
word. Set through `spark.python.daemon.module`.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

from pyspark import daemon

from icestream.runtime.spark import warm_up

#: parameters of malloc: the least block that is mapped by itself, and the most free memory kept
_MMAP_THRESHOLD = -3
_TRIM_THRESHOLD = -1


def keep_freed_memory() -> None:
    """Let this process and its forks keep memory they free, up to 64 MB each."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, 16 << 20)
        library.mallopt(_TRIM_THRESHOLD, 64 << 20)


def ending_quietly(worker: Callable[..., int]) -> Callable[..., int]:
    """Return a worker that ends, instead of printing where, when nobody listens any more."""

    def run(*args: Any) -> int:
        try:
            return worker(*args)
        except BrokenPipeError:
            return 1

    return run


if __name__ == "__main__":
    daemon.worker = ending_quietly(daemon.worker)
    keep_freed_memory()
    warm_up.kernels()
    # a worker collects garbage after every task: what is loaded here is never garbage
    gc.collect()
    gc.freeze()
    daemon.manager()
