"""Memory by its address: that of others as arrays, and bytes that are copied at once.

A loop over single bytes takes ten times as long as the copy of the C library.

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

from icestream.core.arrays import Bytes
from icestream.kernels.compile import PLAIN, kernel

Words = npt.NDArray[np.int64]

_memcpy: Any = cgutils.raw_memcpy


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
def _copy_bytes(_context: Any, out: Any, at: Any, data: Any, begin: Any, count: Any) -> Any:
    """Copy bytes from a place in an array of them to a place in another one."""
    del at, begin, count

    def generated(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ends = [
            builder.gep(context.make_array(kind)(context, builder, array).data, [place])
            for kind, array, place in zip(
                signature.args[:4:2], arguments[:4:2], arguments[1:4:2], strict=True
            )
        ]
        _memcpy(builder, *ends, arguments[4], 1)
        return context.get_dummy_value()

    word: Any = numba.types.intp
    return numba.types.void(out, word, data, word, word), generated


def _plain_copy_bytes(out: Bytes, at: int, data: Bytes, begin: int, count: int) -> None:
    """Do the same in a plain kernel."""
    out[at : at + count] = data[begin : begin + count]


_pointer: Any = _plain_pointer_to if PLAIN else _pointer_to
#: copies `count` bytes of one array to another one, as the C library does
copy_bytes: Any = _plain_copy_bytes if PLAIN else _copy_bytes
_array: Any = numba.carray  # type: ignore[attr-defined]


@kernel
def words_at(address: int, count: int) -> Words:
    """Return the words that begin at an address, as an array."""
    return _array(_pointer(np.intp(address)), (count,))  # type: ignore[no-any-return]
