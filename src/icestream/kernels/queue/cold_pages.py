"""Rows of keys in pages of a file, each on or after the home page of its id.

Idea: a page is a count, the number of keys that *passed* it because it was full, the tags of its
    rows
(hashed bits of their ids), then the rows. A key is on its home page, or on a following one if that
was full when it came; a search ends at a page that no key passed. A removed row is replaced by the
last row of its page, so no row ever changes pages.

Invariants:
1. A row is found until it is taken, and no other (`test_parity_rows_in_pages_beside_a_dictionary`).
2. No put or take moves a row to another page (the same test).

Cost: a search of the tags of a page, and a copy of the row.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ints, Mask, Table
from icestream.kernels.compile import kernel

#: words of a page before the tags: rows on it, keys that passed it
COUNT = 0
PASSED = 1
HEAD = 2
#: modes for rows that are found: copy, copy and remove, or overwrite
LOOK, TAKE, OVER = range(3)


@kernel
def visit_rows(
    pages: Table, room: int, homes: Ints, tags: Ints, rows: Table, found: Mask, mode: int
) -> None:
    """Find cold keys in pages by the ids, the first words of their rows, and apply `mode`.

    `room` is how many rows fit on a page. The pages must include, after every home page, those up
    to one that was not passed.
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
    """Put rows of keys into cold pages; return how many, fewer than all if pages end.

    For each page that takes a row, `fences` is lowered to word `due` of the row.
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
    """Copy rows from cold pages whose word `due` is below `before`; return how many.

    The fence of a page that was visited becomes the least of its other rows. All rows are copied if
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
