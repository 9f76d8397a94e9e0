"""Follows chains of extents through many mapped segments in one call.

Idea: a *map* is a row of ascending ordinals, with the address and the number of words of each
segment. A chain is followed from extent to extent while the next one is in a segment of the map;
the extents passed are listed as *pieces*: the chain, where its words are, and how many. Nothing is
copied until all chains have ended, so each is copied once, to its place.

Invariants:
1. The words copied are those that following the chain one extent at a time gives
   (`test_parity_chains_through_mapped_segments`).
2. A chain with an invalid extent, or one that does not lead back, is reported
   (`test_a_chain_in_a_circle_is_reported`, `test_extents_that_make_no_sense_are_damage`).

Cost: two visits to each extent; O(log segments) to find a segment.
"""

from __future__ import annotations

import numpy as np

from icestream.core.arrays import Ids, Ints, Table
from icestream.kernels.addresses import words_at
from icestream.kernels.compile import kernel
from icestream.kernels.groups.extents import (
    BACK,
    BACK_LATEST,
    HEADER,
    LENGTH,
    SHAPE,
    WORDS,
    copy_header,
    is_sound,
)
from icestream.kernels.groups.heap import NO_ROOT

#: columns of a piece
CHAIN = 0
ADDRESS = 1
SIZE = 2
PIECE = 3
#: how a call ends without damage: no chain can be followed further, or pieces are full
DONE = -1
FULL = -2


@kernel
def find_segment(ordinals: Ints, ordinal: int) -> int:
    """Return the number of the segment where a chain goes on, -1 if it is not mapped."""
    first = 0
    last = ordinals.size
    while first < last:
        middle = (first + last) >> 1
        if ordinals[middle] < ordinal:
            first = middle + 1
        else:
            last = middle
    return first if first < ordinals.size and ordinals[first] == ordinal else -1


@kernel
def follow(
    segments: Table,
    markers: Ints,
    id_high: Ids,
    id_low: Ids,
    watermark: int,
    step: int,
    left: Ints,
    pieces: Table,
    count: int,
) -> tuple[int, int]:
    """Follow chains of extents from their markers, newest first; return pieces and how it ended.

    `segments` has rows of ordinals, addresses and words. A marker is advanced, to `NO_ROOT` at the
    end of its chain or where everything behind has expired. `left` is how many extents may still
    follow, `step` of them for each place in a chain. The end is `DONE`, `FULL`, or the number of a
    chain whose next extent is invalid, offset by the number of chains if it does not lead back.
    """
    header = np.empty((1, HEADER), dtype=np.int64)
    for i in range(markers.size):
        while markers[i] != NO_ROOT:
            segment = find_segment(segments[0], markers[i] >> 32)
            if segment < 0:
                break
            if count == pieces.shape[0]:
                return count, FULL
            stream = words_at(segments[1, segment], segments[2, segment])
            at = markers[i] & 0xFFFFFFFF
            if not is_sound(stream, at, markers[i], id_high[i], id_low[i]):
                return count, i
            begin = copy_header(stream, at, header, 0)
            place = step * (header[0, SHAPE] >> 32)
            left[i] = min(left[i] - 1, place + step - 1)
            if left[i] < place:
                return count, markers.size + i
            pieces[count, CHAIN] = i
            pieces[count, ADDRESS] = segments[1, segment] + 8 * begin
            pieces[count, SIZE] = header[0, LENGTH] & WORDS
            count += 1
            is_over = header[0, BACK] == NO_ROOT or header[0, BACK_LATEST] <= watermark
            markers[i] = NO_ROOT if is_over else header[0, BACK]
    return count, DONE


@kernel
def copy_back(pieces: Table, out: Ints, places: Ints) -> None:
    """Copy pieces of chains, the last one first, to the places of their chains; advance these."""
    for p in range(pieces.shape[0] - 1, -1, -1):
        chain, size = pieces[p, CHAIN], pieces[p, SIZE]
        words = words_at(pieces[p, ADDRESS], size)
        for w in range(size):
            out[places[chain] + w] = words[w]
        places[chain] += size
