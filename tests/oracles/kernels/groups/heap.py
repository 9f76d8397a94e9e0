"""The obvious versions of the kernels in `icestream.kernels.groups.heap`."""

from __future__ import annotations

from icestream.core.arrays import Ints
from icestream.kernels.groups.heap import FREE, Links


def sort_free_reference(links: Links, facts: Ints) -> list[int]:
    """Return the free blocks as `sort_free` leaves them, from the first on."""
    free, block = [], int(facts[FREE]) - 1
    while block >= 0:
        free.append(block)
        block = int(links[block]) - 1
    return sorted(free)


def sift_reference(
    words: Ints, offsets: Ints, cleans: Ints, expiry_at: int, watermark: int
) -> tuple[list[list[int]], list[int], list[int], list[int]]:
    """Return the words, rows, clean words and latest expiry that `sift` leaves, by slices."""
    kept: list[list[int]] = []
    rows, live_cleans, latest = [], [], []
    for k, clean in enumerate(cleans.tolist()):
        at, end = offsets[k : k + 2].tolist()
        begin, row_list, live_clean = at, [], 0
        while at < end:
            size = int(words[at]) >> 32
            row = words[at : at + size].tolist()
            if expiry_at < 0 or row[expiry_at] > watermark:
                row_list.append(row)
                live_clean += size if at - begin < clean else 0
            at += size
        kept.append([word for row in row_list for word in row])
        rows.append(len(row_list))
        live_cleans.append(live_clean)
        expiries = [row[expiry_at] if expiry_at >= 0 else 2**63 - 1 for row in row_list]
        latest.append(max(expiries, default=-(2**63)))
    return kept, rows, live_cleans, latest


class ChainsReference:
    """The effect of `append`, `install`, `replace`, `drop` and `gather`, with a list per group."""

    def __init__(self, groups: int) -> None:
        """Start empty."""
        self.rows: list[list[list[int]]] = [[] for _ in range(groups)]

    def append(self, slots: Ints, words: Ints, offsets: Ints) -> None:
        """Append rows."""
        for i, slot in enumerate(slots.tolist()):
            self.rows[slot].append(words[offsets[i] : offsets[i + 1]].tolist())

    def replace(self, slots: Ints, words: Ints, offsets: Ints, bounds: Ints) -> None:
        """Replace the rows of groups."""
        for k, slot in enumerate(slots.tolist()):
            rows = range(int(bounds[k]), int(bounds[k + 1]))
            self.rows[slot] = [words[offsets[r] : offsets[r + 1]].tolist() for r in rows]

    def drop(self, slots: Ints) -> None:
        """Free groups."""
        for slot in slots.tolist():
            self.rows[slot] = []

    def words(self, slot: int) -> list[int]:
        """Return the words of a group."""
        return [word for row in self.rows[slot] for word in row]
