"""Memory that belongs to others, as arrays: a number is the address of its first word.

Limits: the caller guarantees that the memory exists and stays valid.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
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


_pointer: Any = _plain_pointer_to if PLAIN else _pointer_to
_array: Any = numba.carray  # type: ignore[attr-defined]


@kernel
def words_at(address: int, count: int) -> Words:
    """Return the words that begin at an address, as an array."""
    return _array(_pointer(np.intp(address)), (count,))  # type: ignore[no-any-return]
