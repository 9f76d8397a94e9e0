"""The content of a queue of windows as flat arrays for a snapshot, and the way back.

Idea: cells of keys are written without addresses: tuples are referred to by ordinals, waiting keys
are ordered by their tickets, and keys being processed by a rank. A restore checks or recomputes
every number that kernels use as an index: lists are linked again, tuples fill fresh zones, keys are
entered into the index. A file that was signed again can cause wrong results, never a wrong access.

Invariants:
1. A restored queue continues like the one before
   (`test_oracle_a_queue_goes_on_from_its_content`).
2. Whatever the arrays contain, the queue is restored or ValueError is raised
   (`test_content_that_makes_no_sense_is_refused`).

Cost: O(keys + tuples).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.core.arrays import Ints, Mask, Table
from icestream.kernels.queue.windows import restore as kernels
from icestream.kernels.queue.windows import zones as z
from icestream.kernels.queue.windows.lists import HELD, IDLE, READY, WAIT
from icestream.state.queue.windows.queue import WindowArrays

Content = Mapping[str, npt.NDArray[Any]]

#: counts that continue
_COUNTS = [z.TICKETS, z.MOST_KEPT, z.MOST_LIVE, z.LATE, z.UPDATES, z.COMMITS, z.DONES]
#: addresses, which are not written
_PLACES = [z.FRONT, z.BACK, z.DF, z.WS, z.WE, z.ET, z.WQ_PREV, z.WQ_NEXT]


def content_of(arrays: WindowArrays) -> dict[str, npt.NDArray[Any]]:
    """Return the content of a queue of windows for a snapshot."""
    windows, keys = arrays.kernel, arrays.keys
    facts = windows.facts
    counts = np.zeros(keys, dtype=np.int64)
    ordinals = np.zeros((keys, kernels.ORDINALS), dtype=np.int64)
    tuples = np.zeros((arrays.zones * int(facts[z.ROWS]), int(facts[z.WIDTH])), dtype=np.int64)
    found = kernels.lift_tuples(windows, counts, ordinals, tuples)
    cells = arrays.cells[:keys].copy()
    cells[:, _PLACES] = z.NONE
    ready = np.flatnonzero(cells[:, z.STATES] & READY)
    cells[:, z.UPQ_NEXT] = z.NONE
    cells[ready, z.UPQ_NEXT] = _ranks(arrays.cells[:keys, z.UPQ_NEXT], ready)
    return {
        "counts": facts[_COUNTS].copy(),
        "cells": cells,
        "held": counts,
        "ordinals": ordinals,
        "tuples": tuples[:found],
    }


def _ranks(after: Ints, members: Ints) -> Ints:
    """Return the positions of members in their list, from the links between them."""
    number = np.full(len(after) + 1, len(members), dtype=np.int64)
    number[members] = np.arange(len(members))
    jump = np.append(number[after[members]], len(members))
    # doubling the jumps counts the members that follow each one
    behind = np.append((jump[:-1] < len(members)).astype(np.int64), 0)
    for _ in range(max(1, len(members)).bit_length()):
        behind += behind[jump]
        jump = jump[jump]
    return len(members) - 1 - behind[:-1]


def bring_back(arrays: WindowArrays, content: Content) -> None:
    """Fill an empty queue of windows from a snapshot; ValueError for invalid content."""
    facts = arrays.facts
    width = int(facts[z.WIDTH])
    cells = _array(content, "cells", z.CELL)
    keys = len(cells)
    counts, held = _array(content, "counts"), _array(content, "held")
    ordinals = _array(content, "ordinals", kernels.ORDINALS)
    tuples = _array(content, "tuples", width)
    _check(len(counts) == len(_COUNTS) and len(held) == len(ordinals) == keys, "lengths")
    _check((counts >= 0).all() and (held >= 0).all() and held.sum() == len(tuples), "counts")
    _check_tuples(held, ordinals, tuples)
    _check_cells(cells, held, ordinals)
    identity = np.ascontiguousarray(cells[:, :2]).view(np.uint64)
    id_high, id_low = (np.ascontiguousarray(each) for each in identity.T)
    arrays.reserve_cells(keys)
    _check((arrays.find_cells(id_high, id_low) == np.arange(keys)).all(), "keys")
    arrays.cells[:keys] = cells
    facts[_COUNTS] = counts
    _link(arrays.cells, facts, keys)
    arrays.reserve_zones(int((-(-held // int(facts[z.ROWS]))).sum()))
    kernels.put_tuples(arrays.kernel, held, ordinals, tuples)


def taken_over(parents: Sequence[Content], kept: Sequence[Mask]) -> Content:
    """Return the content of several queues of windows, of some keys of each, as that of one.

    Keys that wait, and those at work, are in the order of their places in the queues they come
    from; no key of a queue overtakes another.
    """
    pairs = list(zip(parents, kept, strict=True))
    cells = np.concatenate([each["cells"][which] for each, which in pairs])
    waits = np.flatnonzero(cells[:, z.STATES] & WAIT != 0)
    cells[waits[np.argsort(cells[waits, z.TICKET], kind="stable")], z.TICKET] = 1 + np.arange(
        len(waits)
    )
    ready = np.flatnonzero(cells[:, z.STATES] & READY != 0)
    cells[ready[np.argsort(cells[ready, z.UPQ_NEXT], kind="stable")], z.UPQ_NEXT] = np.arange(
        len(ready)
    )
    counts = np.sum([each["counts"] for each in parents], axis=0)
    counts[_COUNTS.index(z.TICKETS)] = len(waits)
    of_tuples = [np.repeat(which, each["held"]) for each, which in pairs]
    return {
        "counts": counts,
        "cells": cells,
        **{
            name: np.concatenate([each[name][which] for each, which in pairs])
            for name in ("held", "ordinals")
        },
        "tuples": np.concatenate(
            [each["tuples"][which] for each, which in zip(parents, of_tuples, strict=True)]
        ),
    }


def _check_tuples(held: Ints, ordinals: Table, tuples: Table) -> None:
    of = np.repeat(np.arange(len(held)), held)
    times = tuples[:, z.TIME]
    _check(((np.diff(times) > 0) | (np.diff(of) > 0)).all() and (times > 0).all(), "times")
    _check(((ordinals >= z.NONE) & (ordinals < held[:, None])).all(), "ordinals")


def _check_cells(cells: Table, held: Ints, ordinals: Table) -> None:
    """Raise ValueError for states that no key can have, and for wrong counts of its tuples."""
    states, unread = cells[:, z.STATES], cells[:, z.UNREAD]
    reads, ends, starts = (ordinals[:, n] for n in range(kernels.ORDINALS))
    committed = cells[:, z.COMMITTED] != z.NONE
    _check(((states >= 0) & (states < 2 * HELD)).all(), "states")
    _check(((states & WAIT == 0) | (starts != z.NONE)).all(), "waiting keys")
    _check(((states & HELD == 0) | ((states & WAIT != 0) & committed)).all(), "held keys")
    busy = states & (READY | IDLE)
    _check(((busy == 0) | committed).all() and (busy != READY | IDLE).all(), "keys at work")
    _check(((states & IDLE == 0) | (unread == 0)).all(), "idle keys")
    _check(((unread == 0) | committed).all(), "unread tuples")
    _check((unread == np.where(reads == z.NONE, 0, ends - reads + 1)).all(), "windows")
    _check(((reads == z.NONE) == (ends == z.NONE)).all() and (unread >= 0).all(), "ends")
    kept = np.where(starts == z.NONE, 0, held - starts)
    _check((cells[:, z.KEPT] == kept).all(), "newest windows")
    before = np.where(starts == z.NONE, unread, np.clip(starts - reads, 0, unread))
    _check((cells[:, z.BEFORE] == np.where(unread == 0, 0, before)).all(), "overlaps")


def _link(cells: Table, facts: Ints, keys: int) -> None:
    """Build the lists of waiting keys and of keys being processed."""
    states = cells[:keys, z.STATES]
    waiting = np.flatnonzero((states & WAIT != 0) & (states & HELD == 0))
    tickets = cells[:keys, z.TICKET][states & WAIT != 0]
    _check(len(np.unique(tickets)) == len(tickets), "tickets")
    _check(int(tickets.max(initial=0)) <= int(facts[z.TICKETS]), "the last ticket")
    order = waiting[np.argsort(cells[waiting, z.TICKET])]
    cells[order, z.WQ_PREV] = np.append([z.NONE], order[:-1])[: len(order)]
    cells[order, z.WQ_NEXT] = np.append(order[1:], [z.NONE])[: len(order)]
    ready = np.flatnonzero(states & READY != 0)
    ranks = cells[ready, z.UPQ_NEXT]
    _check((np.sort(ranks) == np.arange(len(ready))).all(), "the order of work")
    line = ready[np.argsort(ranks)]
    cells[line, z.UPQ_NEXT] = np.append(line[1:], [z.NONE])[: len(line)]
    ends = [(order, z.WQ_HEAD, z.WQ_TAIL), (line, z.UPQ_HEAD, z.UPQ_TAIL)]
    for members, head, tail in ends:
        facts[head], facts[tail] = (members[0], members[-1]) if len(members) else (z.NONE, z.NONE)
    facts[z.WAITING] = int((states & WAIT != 0).sum())
    facts[z.READIES] = len(line)
    facts[z.IDLES] = int((states & IDLE != 0).sum())


def _array(content: Content, name: str, width: int = 0) -> npt.NDArray[np.int64]:
    """Return an array of a snapshot; ValueError unless it has numbers in rows of this width."""
    found = content[name]
    fits = found.ndim == 2 and found.shape[1] == width if width else found.ndim == 1
    _check(fits and found.dtype == np.int64, name)
    return found


def _check(holds: Any, what: str) -> None:
    if not holds:
        msg = f"the {what} of a queue of windows are inconsistent"
        raise ValueError(msg)
