"""Groups that have only a size: to try the cold state manager without operators or a log.

Idea: `PlainSubQuery` keeps a bit for each slot, in memory or not, and a few lists. `zipf` draws
slots whose popularity falls off with their rank, and whose ranks move on with time. `work` lets
chunks of accesses pass as a shard does: pin, bring back, hit, unpin, then the manager's turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from icestream.kernels.synopses.cold import Ints, Slots
from icestream.state.cold.manager import Manager


class PlainSubQuery:
    """A sub-query of groups of given sizes, none of them in memory at first."""

    def __init__(self, name: str, sizes: Sequence[int] | Ints, weight: float = 1.0) -> None:
        """Give every slot its size in bytes."""
        self.name = name
        self.weight = weight
        self.sizes: Ints = np.asarray(sizes, dtype=np.int64)
        self.stats = np.zeros((len(self.sizes), 2), dtype=np.int64)
        self.hot = np.zeros(len(self.sizes), dtype=bool)
        self.pinned = np.zeros(len(self.sizes), dtype=bool)
        self.seen = np.zeros(len(self.sizes), dtype=bool)
        self.dirty = np.zeros(len(self.sizes), dtype=bool)
        #: what was told to leave, batch by batch
        self.batches: list[list[int]] = []

    def bytes_held(self) -> int:
        """Bytes of slots in memory."""
        return int(self.sizes[self.hot].sum())

    def candidates(self) -> Slots:
        """Slots in memory without a pin."""
        return np.flatnonzero(self.hot & ~self.pinned)

    def is_clean(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Tell which slots have nothing to be written."""
        return ~self.dirty[slots]

    def resident(self, slots: Slots) -> Ints:
        """Return the sizes of slots."""
        return self.sizes[slots]

    def evict(self, slots: Slots) -> int:
        """Let slots leave."""
        self.batches.append(slots.tolist())
        assert self.hot[slots].all(), "a group that is not in memory was told to leave"
        assert not self.pinned[slots].any(), "a pinned group was told to leave"
        self.hot[slots] = False
        return int(self.sizes[slots].sum())

    def open(self, manager: Manager, slots: Slots) -> int:
        """Bring slots into memory, new or read back; return how many were read."""
        new = slots[~self.seen[slots]]
        back = slots[self.seen[slots] & ~self.hot[slots]]
        manager.returned(self.name, back, cost=float(len(back)))
        manager.opened(self.name, new)
        self.hot[slots] = True
        self.seen[slots] = True
        return len(back)


def zipf(
    seed: int, groups: int, chunks: int, size: int, *, exponent: float = 1.0, drift: int = 0
) -> Iterator[Slots]:
    """Yield chunks of accesses; slot r is the r-th popular, `drift` slots later with each chunk."""
    random = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, groups + 1) ** exponent
    scatter = random.permutation(groups)
    bounds = np.cumsum(weights / weights.sum())
    for chunk in range(chunks):
        ranks = np.minimum(np.searchsorted(bounds, random.random(size)), groups - 1)
        yield scatter[(ranks + chunk * drift) % groups]


def work(
    manager: Manager,
    subqueries: Sequence[PlainSubQuery],
    accesses: Mapping[str, Iterator[Slots]],
    limit: int,
) -> dict[str, int]:
    """Let all accesses pass within a limit of bytes; return how many groups were read back."""
    misses = {subquery.name: 0 for subquery in subqueries}
    for chunks in zip(*(accesses[subquery.name] for subquery in subqueries), strict=True):
        for subquery, slots in zip(subqueries, chunks, strict=True):
            used = np.unique(slots)
            subquery.pinned[used] = True
            held = sum(other.bytes_held() for other in subqueries)
            more = int(subquery.sizes[used[~subquery.hot[used]]].sum())
            if held + more > limit:
                manager.free(held + more - limit)
            misses[subquery.name] += subquery.open(manager, used)
            manager.note(subquery.name, slots)
            subquery.pinned[:] = False
        manager.turn(limit, sum(subquery.bytes_held() for subquery in subqueries))
    return misses
