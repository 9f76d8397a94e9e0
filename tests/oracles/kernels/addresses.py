"""The obvious versions of the kernels in `icestream.kernels.addresses`."""

from __future__ import annotations

from icestream.kernels.addresses import Words


def words_at_reference(memory: Words, address: int, count: int) -> Words:
    """Return what `words_at` does, given the array that the address is in."""
    first = (address - memory.ctypes.data) // 8
    return memory[first : first + count]
