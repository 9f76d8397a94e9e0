"""Memory by its address: that of others as arrays, and bytes that are copied as the C library does.

Limits: the caller guarantees that the memory exists and stays valid.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba.core import cgutils
from numba.extending import intrinsic

from icestream.kernels.compile import PLAIN, kernel

Words = npt.NDArray[np.int64]


@intrinsic
def _pointer_to(_context: Any, address: Any) -> Any:
    """Convert a number to a pointer to words."""

    def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    words: Any = numba.types.CPointer(numba.types.int64)  # type: ignore[no-untyped-call]
    return words(address), generated


def _plain_pointer_to(address: Any) -> Any:
    """Do the same in a plain kernel."""
    return ctypes.cast(int(address), ctypes.POINTER(ctypes.c_int64))


@intrinsic
def _bytes_copied(_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy bytes from one address to another."""

    def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(numba.types.voidptr)  # type: ignore[attr-defined]
        ends = (builder.inttoptr(each, kind) for each in arguments[:2])
        cgutils.raw_memcpy(builder, *ends, arguments[2], 1)
        return context.get_dummy_value()

    nothing: Any = numba.types.void  # type: ignore[attr-defined]
    return nothing(target, source, count), generated


def _plain_bytes_copied(target: Any, source: Any, count: Any) -> None:
    """Do the same in a plain kernel."""
    ctypes.memmove(int(target), int(source), int(count))


_pointer: Any = _plain_pointer_to if PLAIN else _pointer_to
#: copies bytes, given the addresses of target and source, which do not overlap, and their number
copy_bytes: Any = _plain_bytes_copied if PLAIN else _bytes_copied
_array: Any = numba.carray  # type: ignore[attr-defined]


@kernel
def words_at(address: int, count: int) -> Words:
    """Return the words that begin at an address, as an array."""
    return _array(_pointer(np.intp(address)), (count,))  # type: ignore[no-any-return]
