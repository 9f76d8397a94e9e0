"""The one way to compile kernels: machine code on first use, cached on disk, without the GIL.

Idea: the Python workers of a machine meet a new kernel at about the same time. One of them compiles
it; the others wait for it, and load what it made. With `NUMBA_DISABLE_JIT=1` kernels stay plain
Python functions, for debuggers and coverage.

Invariants:
1. A kernel is compiled by one process at a time (`test_a_kernel_is_compiled_by_one_process`).
2. Where no lock can be had, each compiles for itself (`test_without_a_lock_all_the_same`). One
   that holds a lock and does not go on holds up nobody for long
   (`test_a_process_that_was_stopped_holds_up_nobody`); what is made meanwhile is not stored.
3. Plain kernels give what compiled ones give (`test_parity_kernels_pass_their_tests_uncompiled`).

Cost: opening a file on the first call of a kernel in a process. Plain kernels are several hundred
times slower.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numpy as np
from numba import config, njit
from numba.core.compiler_lock import global_compiler_lock

from icestream.kernels.code_cache import code_cache

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

#: whether kernels stay Python functions: NUMBA_DISABLE_JIT=1
PLAIN = bool(config.DISABLE_JIT)  # type: ignore[attr-defined]
#: seconds that a process waits for one that compiles the same kernel, and between two tries
_LOCK_WAIT, _LOCK_TRY = 60.0, 0.01


def kernel(function: Kernel) -> Kernel:
    """Compile a loop over flat arrays; types are taken from the arguments of the first call.

    Indices are not checked: callers check bounds before they call.
    """
    if PLAIN:
        return _plain(function)
    return cast("Kernel", _compiled_once(njit(nogil=True)(function)))


def lean_kernel(function: Kernel) -> Kernel:
    """Compile a kernel that other kernels call for every row.

    Arrays are borrowed without reference counting, and calls are inlined: a call with arrays takes
    tens of nanoseconds less. Such a kernel cannot create arrays, nor call one that returns arrays.
    """
    if PLAIN:
        return _plain(function)
    options: dict[str, Any] = {"nogil": True, "forceinline": True, "_nrt": False}
    return cast("Kernel", _compiled_once(njit(**options)(function)))


def _plain(function: Kernel) -> Kernel:
    """Let the integers and floats of a Python function overflow silently, as in machine code."""
    return np.errstate(over="ignore", under="ignore", invalid="ignore", divide="raise")(function)


def _compiled_once(made: Any) -> Any:
    """Let one process at a time compile a kernel; the kernels it calls are locked after it."""
    made._cache = code_cache(made.py_func)
    compile_it = made.compile

    def compile_or_wait(signature: Any) -> Any:
        with global_compiler_lock, _locked(made) as stored:
            if stored:
                return compile_it(signature)
            made._cache.save_overload = lambda *_: None
            try:
                return compile_it(signature)
            finally:
                del made._cache.save_overload

    made.compile = compile_or_wait
    return made


@contextmanager
def _locked(made: Any) -> Iterator[bool]:
    """Hold the lock of a kernel, a file next to its machine code, if possible.

    Yields False if another process has held it for too long.
    """
    folder, name = made.stats.cache_path, made.py_func.__name__
    if folder is None:
        yield True
        return
    try:
        os.makedirs(folder, exist_ok=True)
        handle = os.open(os.path.join(folder, f"{name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield True
        return
    try:
        yield _acquired(handle)
    finally:
        os.close(handle)


def _acquired(handle: int) -> bool:
    deadline = time.monotonic() + _LOCK_WAIT
    while time.monotonic() < deadline:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_TRY)
        else:
            return True
    return False
