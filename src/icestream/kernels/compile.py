"""The one way kernels are compiled: machine code on first use, cached on disk, without the GIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def kernel(function: Kernel) -> Kernel:
    """Compile a loop over flat arrays; types are taken from the arguments of the first call.

    Indices are not checked: callers check bounds before they call.
    """
    return cast("Kernel", njit(cache=True, nogil=True)(function))


def lean_kernel(function: Kernel) -> Kernel:
    """Compile a kernel that is given its arrays in tuples, and called for every row by others.

    Arrays are borrowed, not counted, and calls are inlined: about twenty times faster per call. It
    cannot make arrays, nor call what returns some.
    """
    options: dict[str, Any] = {"cache": True, "nogil": True, "forceinline": True, "_nrt": False}
    return cast("Kernel", njit(**options)(function))
