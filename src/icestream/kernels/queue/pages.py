"""Pages of equal locations, taken from a pool on demand and returned as soon as they are empty.

Idea: a pool is one array of words cut into pages of 2**shift words. A *space* (one queue's share)
cuts its pages into units of equal size: locations of single values, or blocks of several. Its pages
with free units are linked, those that got a free unit last in front, so nearly full pages are
filled first and emptier ones run empty. The first word of a freed unit is the number of the next
freed one on its page, so the pool of empty locations takes no memory.

Invariants:
1. A unit is allocated at most once at a time (`test_parity_units_beside_sets`).
2. A page without used units is returned to the pool at once (same test).
3. A new page is taken only when no page of the space has a free unit (same test).

Cost: O(1) for every call.

References: on-demand paging and the empty locations pool of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from typing import NamedTuple

from icestream.core.arrays import Ints, Table
from icestream.kernels.compile import lean_kernel

#: facts of a pool: first free page, pages ever used, pages in use, most ever in use, log2 of the
#: words of a page; numbers of pages in lists are stored plus one, zero is "none"
FREE_PAGE = 0
PAGES_SEEN = 1
PAGES_USED = 2
MOST_PAGES = 3
SHIFT = 4
POOL_FACTS = 8

#: facts of a space: first page with free units, words of a unit, units of a page, its pages, its
#: used units, the maximum of both, and whether units are kept for ever
OPEN_PAGE = 0
UNIT = 1
PER_PAGE = 2
PAGES = 3
USED = 4
MOST_SPACE_PAGES = 5
MOST_USED = 6
SPACE_FACTS = 7

#: words of a page: first freed unit plus one, units ever used, units in use, its neighbours among
#: the open pages of its space or the next free page of the pool, whether it is open
FREED = 0
FRESH = 1
IN_USE = 2
AFTER = 3
BEFORE = 4
IS_OPEN = 5
PAGE_WORDS = 6


class PoolArrays(NamedTuple):
    """The arrays of a pool of pages."""

    facts: Ints
    pages: Table
    words: Ints


@lean_kernel
def take_page(pool: PoolArrays) -> int:
    """Return a free page of the pool; there must be one."""
    facts = pool.facts
    page = facts[FREE_PAGE] - 1
    if page >= 0:
        facts[FREE_PAGE] = pool.pages[page, AFTER]
    else:
        page = facts[PAGES_SEEN]
        facts[PAGES_SEEN] += 1
    facts[PAGES_USED] += 1
    facts[MOST_PAGES] = max(facts[MOST_PAGES], facts[PAGES_USED])
    for word in range(PAGE_WORDS):
        pool.pages[page, word] = 0
    return int(page)


@lean_kernel
def give_page(pool: PoolArrays, page: int) -> None:
    """Return a page to the pool."""
    pool.pages[page, AFTER] = pool.facts[FREE_PAGE]
    pool.facts[FREE_PAGE] = page + 1
    pool.facts[PAGES_USED] -= 1


@lean_kernel
def open_page(pool: PoolArrays, space: Ints, page: int) -> None:
    """Put a page first among those with free units."""
    first = space[OPEN_PAGE]
    pool.pages[page, AFTER] = first
    pool.pages[page, BEFORE] = 0
    pool.pages[page, IS_OPEN] = 1
    if first:
        pool.pages[first - 1, BEFORE] = page + 1
    space[OPEN_PAGE] = page + 1


@lean_kernel
def close_page(pool: PoolArrays, space: Ints, page: int) -> None:
    """Remove a page from those with free units."""
    after = pool.pages[page, AFTER]
    before = pool.pages[page, BEFORE]
    if before:
        pool.pages[before - 1, AFTER] = after
    else:
        space[OPEN_PAGE] = after
    if after:
        pool.pages[after - 1, BEFORE] = before
    pool.pages[page, IS_OPEN] = 0


@lean_kernel
def take_unit(pool: PoolArrays, space: Ints) -> int:
    """Return the address of a free unit of a page (MemAdd); there must be a free page or unit."""
    page = space[OPEN_PAGE] - 1
    if page < 0:
        page = take_page(pool)
        open_page(pool, space, page)
        space[PAGES] += 1
        space[MOST_SPACE_PAGES] = max(space[MOST_SPACE_PAGES], space[PAGES])
    pages = pool.pages
    start = page << pool.facts[SHIFT]
    unit = pages[page, FREED] - 1
    if unit >= 0:
        pages[page, FREED] = pool.words[start + unit * space[UNIT]]
    else:
        unit = pages[page, FRESH]
        pages[page, FRESH] += 1
    pages[page, IN_USE] += 1
    if pages[page, IN_USE] == space[PER_PAGE]:
        close_page(pool, space, page)
    space[USED] += 1
    space[MOST_USED] = max(space[MOST_USED], space[USED])
    return int(start + unit * space[UNIT])


@lean_kernel
def give_unit(pool: PoolArrays, space: Ints, address: int) -> None:
    """Free a unit (MemRem), and its page with it if it was the last one used."""
    pages = pool.pages
    page = address >> pool.facts[SHIFT]
    space[USED] -= 1
    pages[page, IN_USE] -= 1
    if pages[page, IN_USE] == 0:
        if pages[page, IS_OPEN]:
            close_page(pool, space, page)
        give_page(pool, page)
        space[PAGES] -= 1
        return
    unit = (address - (page << pool.facts[SHIFT])) // space[UNIT]
    pool.words[address] = pages[page, FREED]
    pages[page, FREED] = unit + 1
    if not pages[page, IS_OPEN]:
        open_page(pool, space, page)
