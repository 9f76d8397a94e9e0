"""Rows of keys in pages of a file, each near the page that its identity says.

Idea: a page is a count, how many keys *passed* it because it was full, the tags of its rows (mixed
bits of their identities), then the rows. A key is on its home page, or on the next ones if that was
full when it came; a search ends at a page that nobody passed. What is taken leaves its place to the
last row of the page, so no row ever changes pages.

Invariants:
1. A row is found until it is taken, and no other (`test_parity_rows_in_pages_beside_a_dictionary`).
2. Nothing that is put or taken moves a row to another page (the same test).

Cost: a look at the tags of a page, and a copy of the row.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Mask, Table
from icestream.kernels.compile import kernel

#: words of a page before the tags: rows on it, keys that passed it
COUNT = 0
PASSED = 1
HEAD = 2
#: what is done to rows that are found: copied, copied and removed, or written over
LOOK, TAKE, OVER = range(3)


@kernel
def visit_rows(
    pages: Table, room: int, homes: Ints, tags: Ints, rows: Table, found: Mask, mode: int
) -> None:
    """Find keys, whose identities are the first two words of their rows, and do what `mode` says.

    `room` is how many rows fit on a page. The pages go on after every home until one was not
    passed.
    """
    width = rows.shape[1]
    for i in range(homes.size):
        page = homes[i]
        at = -1
        while True:
            for place in range(pages[page, COUNT]):
                if pages[page, HEAD + place] != tags[i]:
                    continue
                word = HEAD + room + place * width
                if pages[page, word] == rows[i, 0] and pages[page, word + 1] == rows[i, 1]:
                    at = place
                    break
            if at >= 0 or pages[page, PASSED] == 0:
                break
            page += 1
        found[i] = at >= 0
        if at < 0:
            continue
        word = HEAD + room + at * width
        if mode == OVER:
            for w in range(width):
                pages[page, word + w] = rows[i, w]
            continue
        for w in range(width):
            rows[i, w] = pages[page, word + w]
        if mode == TAKE:
            last = pages[page, COUNT] - 1
            pages[page, COUNT] = last
            pages[page, HEAD + at] = pages[page, HEAD + last]
            for w in range(width):
                pages[page, word + w] = pages[page, HEAD + room + last * width + w]
            for passed in range(homes[i], page):
                pages[passed, PASSED] -= 1


@kernel
def put_rows(
    pages: Table, room: int, homes: Ints, tags: Ints, rows: Table, due: int, fences: Ints
) -> int:
    """Put rows of keys that are not there; return how many, less than all where pages end.

    Of each page that takes one, `fences` is lowered to word `due` of its row.
    """
    width = rows.shape[1]
    for i in range(homes.size):
        page = homes[i]
        while page < pages.shape[0] and pages[page, COUNT] == room:
            page += 1
        if page == pages.shape[0]:
            return i
        for passed in range(homes[i], page):
            pages[passed, PASSED] += 1
        place = pages[page, COUNT]
        pages[page, COUNT] = place + 1
        pages[page, HEAD + place] = tags[i]
        for w in range(width):
            pages[page, HEAD + room + place * width + w] = rows[i, w]
        fences[page] = min(fences[page], rows[i, due])
    return int(homes.size)


@kernel
def collect_rows(pages: Table, room: int, due: int, before: int, fences: Ints, out: Table) -> int:
    """Copy rows whose word `due` is below `before` from pages that may have some; say how many.

    The fence of a page that was looked at is the least of its other rows. All rows are copied if
    `due` is negative.
    """
    width = out.shape[1]
    count = 0
    for page in range(pages.shape[0]):
        if fences[page] >= before:
            continue
        later = np.int64(2**63 - 1)
        for place in range(pages[page, COUNT]):
            word = HEAD + room + place * width
            if due >= 0 and pages[page, word + due] >= before:
                later = min(later, pages[page, word + due])
                continue
            for w in range(width):
                out[count, w] = pages[page, word + w]
            count += 1
        fences[page] = later
    return count
