"""What an operator does with a tuple: open a window, update it, emit it.

Idea: the queue delimits windows, the operator only follows the marks. A mark above 0 opens a window
of the key that ends at that time; 0 and -1 open nothing; every tuple updates its key's open window;
a record at the end of the window emits it. Each open window has a slot; tuples outside of all
windows get slot 0.

Invariants:
1. Slots and emissions are those of a dict of open windows (`test_parity_marks_are_obeyed`).

Cost: O(1) per record.

References: Table 1 of the source named in `docs/papers.md`.
"""

from __future__ import annotations

from icestream.core.arrays import Ints
from icestream.kernels.compile import kernel

#: slot of tuples in no open window
NOWHERE = 0


@kernel
def obey_marks(
    keys: Ints,
    times: Ints,
    marks: Ints,
    slot_of: Ints,
    end_of: Ints,
    free: Ints,
    free_count: int,
    slots: Ints,
    opened: Ints,
    emitted: Ints,
) -> tuple[int, int, int]:
    """Obey the marks of tuples: give each record the slot of its key's open window.

    `slot_of` and `end_of` have each key's open window, slot 0 for none; `free` is a stack of slots.
    Lists the slots that were opened, and the records at which a window is emitted. Returns (free
    slots left, windows opened, windows emitted); slots of emitted windows are not freed.
    """
    opens = 0
    emits = 0
    for i in range(keys.size):
        key = keys[i]
        if marks[i] > 0:
            free_count -= 1
            slot_of[key] = free[free_count]
            end_of[key] = marks[i]
            opened[opens] = slot_of[key]
            opens += 1
        slots[i] = slot_of[key]
        if slot_of[key] != NOWHERE and times[i] == end_of[key]:
            emitted[emits] = i
            emits += 1
            slot_of[key] = NOWHERE
    return free_count, opens, emits
