"""Rows of keys in regions of a file, and the updates of keys that are there.

Idea: a region is a hash table of its own. The upper bits of a key's *mark*, a hash that is never 0,
give its region, the lower bits the place in it where a search begins; it ends at a free place. A
place has the mark, then some words of the key's row, of which the others have fixed contents.
Removing a row closes the gap, so that no search ends early. Updates change rows as they would
change the cell of a key in memory.

Invariants:
1. A row is found until it is taken, and no other
   (`test_parity_rows_in_regions_beside_a_dictionary`).
2. The fence of a region is at most the smallest of its rows' words (the same test).
3. Updates of rows are those of cells (`test_oracle_a_small_budget_serves_the_same`).

Cost: a search of one or two places, and a copy of the row.
"""

from __future__ import annotations

from icestream.core.arrays import Ints, Mask, Table
from icestream.kernels.compile import kernel, lean_kernel
from icestream.kernels.queue.order import (
    BIT,
    FIFO,
    FLYING,
    LACKS,
    LARGEST,
    QUEUE,
    QUEUE_STALENESS,
    READER_WORDS,
    SCHEDULE,
    SINCE,
    TURN,
    WAITING,
    ReaderArrays,
)
from icestream.kernels.queue.queue import (
    ADDRESS,
    CELL_WORDS,
    SIZE,
    WAITED_FOR,
    Readers,
    accept_one,
)
from icestream.kernels.queue.staleness import NONE, RealTable, settle

#: lower bits of a mark, which give the place in a region
PLACE_BITS = 31
_LOW = (1 << PLACE_BITS) - 1
#: found neither a row nor a free place
_FULL = -(2**62)


@lean_kernel
def first_place(mark: int, places: int) -> int:
    """Return the place in a cold region where the search for a mark begins."""
    return ((mark & _LOW) * places) >> PLACE_BITS


@lean_kernel
def find_row(table: Table, base: int, places: int, mark: int, id_high: int, id_low: int) -> int:
    """Return where a cold key's row is, or -1 minus the free place for it, or `_FULL`."""
    at = first_place(mark, places)
    for _ in range(places):
        row = base + at
        if table[row, 0] == 0:
            return -1 - row
        if table[row, 0] == mark and table[row, 1] == id_high and table[row, 2] == id_low:
            return row
        at = at + 1 if at + 1 < places else 0
    return _FULL


@lean_kernel
def remove_row(table: Table, base: int, places: int, row: int) -> None:
    """Remove a row from a cold region; rows after it that were pushed on move back."""
    first = hole = at = row - base
    while True:
        at = at + 1 if at + 1 < places else 0
        mark = table[base + at, 0]
        if mark == 0 or at == first:
            break
        home = first_place(mark, places)
        if hole < home <= at or (at < hole and (home > hole or home <= at)):
            continue
        for word in range(table.shape[1]):
            table[base + hole, word] = table[base + at, word]
        hole = at
    table[base + hole, 0] = 0


@kernel
def visit_rows(
    table: Table,
    places: int,
    regions: Ints,
    marks: Ints,
    words: Ints,
    rows: Table,
    found: Mask,
    taking: bool,
) -> None:
    """Copy rows of cold keys out of regions, by the ids in the first words of `rows`.

    `words` are the words of a row that are in the table; they are removed if `taking`.
    """
    for i in range(regions.size):
        base = regions[i] * places
        at = find_row(table, base, places, marks[i], rows[i, 0], rows[i, 1])
        found[i] = at >= 0
        if at < 0:
            continue
        for w in range(words.size):
            rows[i, words[w]] = table[at, 1 + w]
        if taking:
            remove_row(table, base, places, at)


@kernel
def put_rows(
    table: Table,
    places: int,
    regions: Ints,
    marks: Ints,
    words: Ints,
    rows: Table,
    chosen: Mask,
    dues: Ints,
    fences: Table,
) -> int:
    """Put chosen rows of cold keys into regions, over those that they have there.

    Returns how many were new; those for which their region had no place are still chosen. `fences`
    are lowered to words `dues` of the rows.
    """
    new = 0
    for i in range(regions.size):
        if not chosen[i]:
            continue
        at = find_row(table, regions[i] * places, places, marks[i], rows[i, 0], rows[i, 1])
        if at == _FULL:
            continue
        if at < 0:
            at = -1 - at
            new += 1
        table[at, 0] = marks[i]
        for w in range(words.size):
            table[at, 1 + w] = rows[i, words[w]]
        for d in range(dues.size):
            fences[regions[i], d] = min(fences[regions[i], d], rows[i, dues[d]])
        chosen[i] = False
    return new


@kernel
def collect_rows(
    table: Table,
    places: int,
    words: Ints,
    dues: Ints,
    due: int,
    before: int,
    fences: Table,
    out: Table,
) -> int:
    """Remove rows whose word `dues[due]` is below `before` from cold regions, and copy them.

    The fences of a region that was visited become those of its other rows. If `due` is negative,
    all rows are copied, and none is removed. Returns how many.
    """
    count = 0
    column = -1
    for w in range(words.size):
        if due >= 0 and words[w] == dues[due]:
            column = 1 + w
    for region in range(table.shape[0] // places):
        if due >= 0 and fences[region, due] >= before:
            continue
        base = region * places
        row = base
        while row < base + places:
            if table[row, 0] == 0 or (due >= 0 and table[row, column] >= before):
                row += 1
                continue
            for w in range(words.size):
                out[count, words[w]] = table[row, 1 + w]
            count += 1
            if due < 0:
                row += 1
            else:
                # another row may have moved to this place
                remove_row(table, base, places, row)
        if due >= 0:
            renew_fences(table, base, places, words, dues, fences, region)
    return count


@lean_kernel
def renew_fences(
    table: Table, base: int, places: int, words: Ints, dues: Ints, fences: Table, region: int
) -> None:
    """Set the fences of a cold region to the smallest words of its rows."""
    for d in range(dues.size):
        fences[region, d] = NONE
        for w in range(words.size):
            if words[w] != dues[d]:
                continue
            for row in range(base, base + places):
                if table[row, 0] != 0:
                    fences[region, d] = min(fences[region, d], table[row, 1 + w])


@kernel
def serve_rows(reader: ReaderArrays, arrived: Ints, now: int) -> None:
    """Take the values of cold keys for a reader, whose rows are those of these keys."""
    keys, facts = reader.keys, reader.facts
    for i in range(arrived.size):
        since = keys[i, SINCE]
        end = settle(keys, reader.reals, reader.queue_profile, i, QUEUE_STALENESS, since, now)
        facts[LARGEST + QUEUE] = max(facts[LARGEST + QUEUE], end)
        keys[i, SINCE] = NONE
        keys[i, TURN] = NONE
        keys[i, FLYING] = arrived[i]
    facts[WAITING] -= arrived.size


@kernel
def update_rows(
    facts: Ints,
    readers: Readers,
    rows: Table,
    reals: RealTable,
    starts: Ints,
    arrived: Ints,
    folded: Table,
    turns: Ints,
    addresses: Ints,
    sizes: Ints,
) -> int:
    """Let updates change the rows of cold keys; return how many words of values are dead then.

    Updates `starts[i]` to `starts[i + 1]` are those of row i, in order. `rows` and `reals` are the
    same words. LINECUTTING is not known here.
    """
    dead = 0
    for i in range(rows.shape[0]):
        for u in range(starts[i], starts[i + 1]):
            if not accept_one(facts, rows, reals, i, arrived[u], folded[u, 0], folded[u, 1]):
                dead += sizes[u]
                continue
            if rows[i, WAITED_FOR]:
                dead += rows[i, SIZE]
            rows[i, ADDRESS] = addresses[u]
            rows[i, SIZE] = sizes[u]
            first = CELL_WORDS
            for reader in readers:
                bit = 1 << reader.facts[BIT]
                if rows[i, WAITED_FOR] & bit == 0:
                    rows[i, WAITED_FOR] |= bit
                    reader.facts[WAITING] += 1
                    rows[i, first + SINCE] = arrived[u]
                    rows[i, first + TURN] = turns[u]
                    if rows[i, first + LACKS] == NONE:
                        rows[i, first + LACKS] = arrived[u]
                elif reader.facts[SCHEDULE] == FIFO:
                    rows[i, first + TURN] = turns[u]
                first += READER_WORDS
    return dead
