from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.kernels import byte_heap as heaps
from icestream.kernels.hashing import NULL, VALUE
from tests.oracles.kernels import byte_heap as plain_heaps

NO_MASK = np.empty(0, np.uint8)
CELLS = 8
TEXTS = st.lists(st.tuples(st.integers(0, CELLS - 1), st.binary(max_size=11)), max_size=8)


class Heap:
    """Starts and words, driven by the kernels or by their twins."""

    def __init__(self, suffix: str = "") -> None:
        self.starts = np.zeros(CELLS, np.uint32)
        self.words = np.full(4096, 0xAAAAAAAA, np.uint32)
        self.tail, self.garbage = heaps.FIRST, 0
        self.suffix = suffix

    def kernel(self, name: str) -> Callable[..., Any]:
        home = plain_heaps if self.suffix else heaps
        found: Callable[..., Any] = getattr(home, name + self.suffix)
        return found

    def scatter(self, rows: list[tuple[int, bytes]], mask: npt.NDArray[np.uint8]) -> None:
        cells, offsets, data = columns(rows)
        needed = self.kernel("words_needed")(offsets, mask)
        before = self.tail
        self.tail, garbage = self.kernel("scatter_bytes")(
            cells, offsets, data, mask, self.starts, self.words, self.tail
        )
        assert self.tail - before == needed
        self.garbage += garbage

    def free(self, cells: list[int]) -> None:
        places = np.array(cells, np.int64)
        self.garbage += self.kernel("free_bytes")(places, self.starts, self.words)

    def compact(self) -> None:
        self.tail = self.kernel("compact_bytes")(self.starts, self.words, self.tail)
        self.garbage = 0

    def gather(self, cells: list[int]) -> list[bytes]:
        places, offsets = np.array(cells, np.int64), np.zeros(len(cells) + 1, np.int64)
        self.kernel("measure_bytes")(places, self.starts, self.words, offsets)
        out = np.empty(int(offsets[-1]), np.uint8)
        self.kernel("gather_bytes")(places, self.starts, self.words, offsets, out)
        ends = offsets.tolist()
        return [out[a:b].tobytes() for a, b in pairwise(ends)]


def columns(
    rows: list[tuple[int, bytes]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Lay rows out as Arrow does, behind three bytes of something else."""
    cells = np.array([cell for cell, _ in rows], np.int64)
    offsets = np.cumsum([3, *(len(text) for _, text in rows)]).astype(np.int32)
    return cells, offsets, np.frombuffer(b"xyz" + b"".join(t for _, t in rows), np.uint8)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("scatter"), TEXTS, st.none() | st.lists(st.booleans(), max_size=8)),
        st.tuples(st.just("free"), st.lists(st.integers(0, CELLS - 1), max_size=4), st.none()),
        st.tuples(st.just("compact"), st.none(), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_oracle_a_heap_is_a_dictionary(steps: list[tuple[str, Any, Any]]) -> None:
    heap, twin, truth = Heap(), Heap("_reference"), dict.fromkeys(range(CELLS), b"")
    for step, given_rows, present in steps:
        if step == "scatter":
            mask = NO_MASK
            if present is not None:
                flags = (present + [True] * 8)[: len(given_rows)]
                mask = np.array([VALUE if flag else NULL for flag in flags], np.uint8)
            for i, (cell, text) in enumerate(given_rows):
                truth[cell] = text if mask.size == 0 or mask[i] == VALUE else b""
            heap.scatter(given_rows, mask)
            twin.scatter(given_rows, mask)
        elif step == "free":
            heap.free(given_rows)
            twin.free(given_rows)
            truth.update(dict.fromkeys(given_rows, b""))
        else:
            heap.compact()
            twin.compact()
        live = sum(heaps.HEAD + -(-len(text) // 4) for text in truth.values() if text)
        assert heap.tail == heaps.FIRST + live + heap.garbage
        asked = [*range(CELLS), 3, 3, 0]
        assert heap.gather(asked) == twin.gather(asked) == [truth[cell] for cell in asked]
        assert (heap.tail, heap.garbage) == (twin.tail, twin.garbage)
        np.testing.assert_array_equal(heap.starts, twin.starts)
        np.testing.assert_array_equal(heap.words[: heap.tail], twin.words[: twin.tail])


def test_compaction_slides_entries_down() -> None:
    """Before: [a][b][c][d], after freeing a and c: [b][d], bytes beyond untouched."""
    heap = Heap()
    heap.scatter([(0, b"aaaa"), (1, b"bb"), (2, b"c" * 9), (3, b"ddd")], NO_MASK)
    heap.free([0, 2, 2])
    assert heap.garbage == 3 + 5
    words, tail = heap.words.copy(), heap.tail
    heap.compact()
    assert heap.starts.tolist() == [0, 1, 0, 4, 0, 0, 0, 0]
    assert heap.tail == 7
    np.testing.assert_array_equal(heap.words[heap.tail :], words[heap.tail :])
    assert heap.tail < tail
    assert heap.gather([3, 1, 0]) == [b"ddd", b"bb", b""]


def test_empty_values_take_no_words() -> None:
    heap = Heap()
    heap.scatter([(0, b""), (1, b"")], NO_MASK)
    assert heap.tail == heaps.FIRST
    assert heap.gather([0, 1]) == [b"", b""]


def test_a_cell_that_comes_twice_keeps_the_later_row() -> None:
    heap = Heap()
    heap.scatter([(5, b"first"), (5, b"second")], NO_MASK)
    assert heap.gather([5]) == [b"second"]
    assert heap.garbage == heaps.entry_words(5)
