"""Rows of words in units of a space: in one location, or in a chain of them.

Idea: if all rows have equal length, a row is one unit. Otherwise the first word of a unit is the
address of the next one plus one, and a row takes as many units as it needs. A row begins at word
`first` of its first unit, so a queue can store words of its own before it.

Invariants:
1. The last row written is read back, and chains have no unit too many
   (`test_parity_rows_in_chains_beside_lists`).

Cost: one copy of the row.
"""

from __future__ import annotations

from icestream.core.arrays import Ints
from icestream.kernels.compile import lean_kernel
from icestream.kernels.queue.pages import UNIT, PoolArrays, give_unit, take_unit


@lean_kernel
def take_row(pool: PoolArrays, space: Ints, linked: bool) -> int:
    """Return the address of a new row: a chain of one unit."""
    address = take_unit(pool, space)
    if linked:
        pool.words[address] = 0
    return address


@lean_kernel
def write_row(
    pool: PoolArrays,
    space: Ints,
    address: int,
    first: int,
    linked: bool,
    words: Ints,
    begin: int,
    end: int,
) -> None:
    """Write `words[begin:end]` to the chain of units at an address, replacing its row."""
    target = pool.words
    if not linked:
        start = address + first - begin
        for i in range(begin, end):
            target[start + i] = words[i]
        return
    at = begin
    offset = first
    while True:
        count = min(space[UNIT] - offset, end - at)
        for i in range(count):
            target[address + offset + i] = words[at + i]
        at += count
        if at == end:
            break
        following = target[address] - 1
        if following < 0:
            following = take_unit(pool, space)
            target[following] = 0
            target[address] = following + 1
        address = following
        offset = 1
    spare = target[address] - 1
    target[address] = 0
    while spare >= 0:
        following = target[spare] - 1
        give_unit(pool, space, spare)
        spare = following


@lean_kernel
def read_row(
    pool: PoolArrays,
    space: Ints,
    address: int,
    first: int,
    linked: bool,
    out: Ints,
    begin: int,
    end: int,
) -> None:
    """Copy the row in the chain of units at an address to `out[begin:end]`."""
    source = pool.words
    if not linked:
        start = address + first - begin
        for i in range(begin, end):
            out[i] = source[start + i]
        return
    at = begin
    offset = first
    while at < end:
        count = min(space[UNIT] - offset, end - at)
        for i in range(count):
            out[at + i] = source[address + offset + i]
        at += count
        address = source[address] - 1
        offset = 1


@lean_kernel
def free_row(pool: PoolArrays, space: Ints, address: int, linked: bool) -> None:
    """Free all units of the chain of a row."""
    if not linked:
        give_unit(pool, space, address)
        return
    while address >= 0:
        following = pool.words[address] - 1
        give_unit(pool, space, address)
        address = following


@lean_kernel
def units_of(space: Ints, first: int, linked: bool, size: int) -> int:
    """Return how many units of a chain a row of `size` words takes."""
    rest = size - (space[UNIT] - first)
    if not linked or rest <= 0:
        return 1
    payload = space[UNIT] - 1
    return int(1 + (rest + payload - 1) // payload)
