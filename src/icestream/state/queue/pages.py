"""The page pool, and how queues allocate from it.

Idea: a `PagePool` is one growing array of pages that several queues may share. A queue's share of
it is a *space*: `OnDemandPages` allocates single locations, or blocks of several words, and returns
a page as soon as nothing on it is used.

Invariants:
1. A page belongs to the space with used units on it, or to the pool
   (`test_oracle_spaces_share_a_pool`).
2. Reserved units can be taken without growing (`test_bounded_reserved_units_are_there`).
3. A refused `reserve` changes nothing (`test_bounded_a_refused_reserve_changes_nothing`).

Cost: 48 bytes for each page.

References: on-demand paging, of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints
from icestream.core.errors import DefinitionError
from icestream.kernels.queue import pages as k
from icestream.kernels.queue.pages import PoolArrays
from icestream.state.budget import Refused
from icestream.state.queue.arrays import Arrays, HeapArrays, grow_ahead

PAGE_BYTES = 65_536
_WORD = 8


class PagePool:
    """Pages of equal size, shared by several queues."""

    def __init__(
        self, arrays: Arrays | None = None, *, page_bytes: int = PAGE_BYTES, name: str = "pool"
    ) -> None:
        """Attach to the arrays `name.*`, or start without a page.

        Args:
            arrays: an arena, or heap arrays of an account; by default the heap, without limit.
            page_bytes: size of a page, a power of two.
            name: prefix of the arrays' names.
        """
        if page_bytes < 2 * _WORD or page_bytes & (page_bytes - 1):
            msg = f"page_bytes must be a power of two >= 16; got {page_bytes}"
            raise DefinitionError(msg)
        #: provider of its arrays, and by default of those of its queues
        self.arrays = HeapArrays() if arrays is None else arrays
        self.page_bytes = page_bytes
        self.page_words = page_bytes // _WORD
        self._facts = self.arrays.array(f"{name}.facts", np.int64, 1, k.POOL_FACTS)
        self._pages = self.arrays.array(f"{name}.pages", np.int64, k.PAGE_WORDS)
        self._words = self.arrays.array(f"{name}.words", np.int64, self.page_words)
        self._facts.view[k.SHIFT] = self.page_words.bit_length() - 1
        #: maximum number of pages, if limited
        self.limit: int | None = None

    @property
    def kernel(self) -> PoolArrays:
        """The arrays, for kernels; never keep them across a call that may grow them."""
        return PoolArrays(self._facts.view, self._pages.view, self._words.view.reshape(-1))

    def clear(self) -> None:
        """Take all pages from all spaces, which must be cleared, too."""
        self._facts.view[[k.FREE_PAGE, k.PAGES_SEEN, k.PAGES_USED]] = 0

    @property
    def capacity(self) -> int:
        return min(self._pages.capacity, self._words.capacity)

    @property
    def used(self) -> int:
        return int(self._facts.view[k.PAGES_USED])

    @property
    def most(self) -> int:
        """Most pages ever in use at once."""
        return int(self._facts.view[k.MOST_PAGES])

    @property
    def free(self) -> int:
        """Pages that can be taken without growing."""
        return self.capacity - self.used

    def reserve(self, pages: int) -> None:
        """Make room for `pages` more than are in use; a refusal changes nothing."""
        wanted = self.used + pages
        if self.limit is not None and wanted > max(self.limit, self.capacity):
            free = self.page_bytes * max(0, self.limit - self.used)
            owner = "pages of values"
            raise Refused(owner, self.page_bytes * pages, free)
        grow_ahead([(self._pages, wanted), (self._words, wanted)], self.limit)


class OnDemandPages:
    """A queue's share of a pool: units of equal size; empty pages are returned at once."""

    def __init__(self, pool: PagePool, unit: int, name: str = "pages") -> None:
        """Attach to the space `name` of the pool's arrays, or start without a page.

        Args:
            pool: pool of the pages.
            unit: words of a location, or of a block of locations.
            name: name of the array.
        """
        if not 0 < unit <= pool.page_words:
            msg = (
                f"a location of {unit * _WORD} bytes does not fit into a page of "
                f"{pool.page_bytes}; use larger pages"
            )
            raise DefinitionError(msg)
        self.pool = pool
        self._facts = pool.arrays.array(f"{name}.facts", np.int64, 1, k.SPACE_FACTS)
        self._facts.view[k.UNIT] = unit
        self._facts.view[k.PER_PAGE] = pool.page_words // unit

    def clear(self) -> None:
        """Forget all units, with those of every other space of the pool."""
        self._facts.view[[k.OPEN_PAGE, k.PAGES, k.USED]] = 0
        self.pool.clear()

    @property
    def kernel(self) -> Ints:
        facts: Ints = self._facts.view
        return facts

    @property
    def unit(self) -> int:
        return int(self._facts.view[k.UNIT])

    @property
    def per_page(self) -> int:
        return int(self._facts.view[k.PER_PAGE])

    @property
    def pages(self) -> int:
        return int(self._facts.view[k.PAGES])

    @property
    def used(self) -> int:
        return int(self._facts.view[k.USED])

    @property
    def most_pages(self) -> int:
        """Most pages ever in use at once."""
        return int(self._facts.view[k.MOST_SPACE_PAGES])

    @property
    def most_used(self) -> int:
        """Most units ever in use at once."""
        return int(self._facts.view[k.MOST_USED])

    @property
    def room(self) -> int:
        """Units that can be taken without growing the pool."""
        return self.pages * self.per_page - self.used + self.pool.free * self.per_page

    def reserve(self, units: int) -> None:
        """Make sure that `units` units can be taken; a refusal changes nothing."""
        missing = units - (self.pages * self.per_page - self.used)
        if missing > 0:
            self.pool.reserve(-(-missing // self.per_page))

    def take(self) -> int:
        """Return the address, in words of the pool, of a free unit (MemAdd)."""
        self.reserve(1)
        return int(k.take_unit(self.pool.kernel, self.kernel))

    def give(self, address: int) -> None:
        """Free a unit, and its page if it was the last on it (MemRem)."""
        k.give_unit(self.pool.kernel, self.kernel, address)
