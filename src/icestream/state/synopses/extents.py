"""Extents on the log: groups' rows in records of many groups, chained back in time.

Idea: what several groups add is written together, sorted by identity, in records of about 256 KB. A
group remembers the marker of the record; its extent is found inside by a binary search. An extent
points back to the group's previous one and carries the latest expiry of all that is behind it, so a
chain is followed exactly as long as it has rows that live, and a segment goes as a whole. Many
chains are read together, segment by segment, the newest first: all that they have in one is read in
a sorted pass.

Invariants:
1. Reading a chain gives its rows, oldest first (`test_oracle_chains_are_read_oldest_first`).
2. Nothing of an expired segment is asked for (`test_a_chain_ends_where_all_has_expired`).
3. Each record is read once, whatever chains have extents there
   (`test_bounded_a_pass_reads_each_record_once`,
   `test_bounded_chains_of_different_lengths_read_each_record_once`).
4. Damage names the file (`test_damage_in_an_extent_names_the_file`).
5. A record whose extents do not fit, or hold no rows, is damage, and so is a chain that does not
   lead back (`test_extents_that_make_no_sense_are_damage`).

Cost: 56 bytes per extent; a pass per segment that chains have extents in.

Limits: 2**16 - 1 extents in a chain, 2**32 words in an extent.

References: delta updates and expiry markers of log-structured cold state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.core.errors import DamageError
from icestream.core.times import INFINITY
from icestream.kernels.synopses import extents as kernels
from icestream.kernels.synopses.heap import NO_ROOT
from icestream.state.log.format import show_marker
from icestream.state.synopses.options import ROWS, Space, forever
from icestream.state.synopses.ranked import PIECES, Best
from icestream.state.synopses.rows import RowCodec
from icestream.state.synopses.spec import Ids, Ints
from icestream.state.synopses.tail import Tail

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Extents:
    """What is to be written, sorted by identity, an extent of each group."""

    #: columns as in `kernels.extents`
    headers: Ints
    #: words of all, and where each begins and the last one ends
    words: Ints
    offsets: Ints


@dataclass
class Traffic:
    """What went to the log and came back."""

    extents: int = 0
    records: int = 0
    bytes: int = 0
    records_read: int = 0
    bytes_read: int = 0
    #: bytes by lifetime class
    classes: dict[str, int] = field(default_factory=dict)


class ExtentLog:
    """The extents of one store."""

    def __init__(self, space: Space, scope: int, name: str, record_bytes: int) -> None:
        """Write and read records of operator `scope`."""
        self._space = space
        self._scope = scope
        self._record_words = record_bytes // 8
        self._tail = Tail(space.arena, name)
        self.traffic = Traffic()
        #: ordinals of the segments written to last, by lifetime class
        self.open: dict[str, int] = {}

    # -- writing ---------------------------------------------------------------------------

    def write(self, synopsis: int, extents: Extents, sequence: int, *, mirrored: bool) -> Ints:
        """Append extents; return their markers. Those that are mirrored can be read at once."""
        headers, words, offsets = extents.headers, extents.words, extents.offsets
        markers = np.full(len(headers), NO_ROOT, dtype=np.int64)
        never = headers[:, kernels.LATEST] == INFINITY
        for lifetime, chosen in ((ROWS, ~never), (forever(self._scope), never)):
            if chosen.all():
                return self._append(lifetime, synopsis, headers, words, offsets, sequence, mirrored)
            if chosen.any():
                at = np.flatnonzero(chosen)
                theirs = picked(words, offsets[at], np.diff(offsets)[at])
                markers[at] = self._append(
                    lifetime, synopsis, headers[at], *theirs, sequence, mirrored
                )
        return markers

    def _append(
        self,
        lifetime: str,
        synopsis: int,
        headers: Ints,
        words: Ints,
        offsets: Ints,
        sequence: int,
        mirrored: bool,
    ) -> Ints:
        writer = self._space.segment(lifetime)
        if self.open.get(lifetime) != writer.ordinal:
            self.open[lifetime] = writer.ordinal
            self._tail.begin(set(self.open.values()))
        markers = np.empty(len(headers), dtype=np.int64)
        filled = offsets + kernels.HEADER * np.arange(len(offsets))
        first = 0
        while first < len(headers):
            room = filled[first] + self._record_words - 1
            last = max(first + 1, int(np.searchsorted(filled, room, side="right")) - 1)
            payload = np.concatenate(
                (
                    np.array([last - first]),
                    headers[first:last].reshape(-1),
                    words[offsets[first] : offsets[last]],
                )
            )
            marker = writer.append(
                payload,
                operator=self._scope,
                synopsis=synopsis,
                group=sequence,
                rows=last - first,
                expiry=int(headers[first:last, kernels.LATEST].max()),
            )
            markers[first:last] = marker
            if mirrored:
                self._tail.keep(marker, payload.view(np.uint8).data)
            self.traffic.records += 1
            self.traffic.bytes += payload.nbytes
            self.traffic.classes[lifetime] = self.traffic.classes.get(lifetime, 0) + payload.nbytes
            first = last
        self.traffic.extents += len(headers)
        return markers

    # -- reading ---------------------------------------------------------------------------

    def read_chains(
        self,
        hi: Ids,
        lo: Ids,
        roots: Ints,
        expiries: Ints,
        watermark: int,
        best: Best | None = None,
        codec: RowCodec | None = None,
    ) -> tuple[Ints, Ints]:
        """Return the words behind roots, oldest first, and where each group's begin and end.

        What the watermark shows to be expired as a whole is not read; single rows may be expired.
        If only the best rows are wanted, a chain is left where it has enough of them. With a codec
        the words must be rows of it (DamageError).
        """
        total = np.zeros(len(hi), dtype=np.int64)
        # extents that may still follow, as their places in the chain descend
        left = np.full(len(hi), np.iinfo(np.int64).max)
        passes = []
        waiting = np.flatnonzero((roots != NO_ROOT) & (expiries > watermark))
        markers = roots[waiting]
        while len(waiting):
            ordinals = markers >> 32
            newest = ordinals == ordinals.max()
            active, theirs = waiting[newest], markers[newest]
            order = np.argsort(theirs, kind="stable")
            active, theirs = active[order], theirs[order]
            words, sizes, headers = self._fetch(theirs, hi[active], lo[active])
            total[active] += sizes
            begins = np.cumsum(sizes) - sizes
            places = PIECES * (headers[:, kernels.SHAPE] >> 32)
            left[active] = np.minimum(left[active] - 1, places + PIECES - 1)
            if (left[active] < places).any():
                raise self._damage(theirs, "does not lead back to the beginning of a chain")
            if codec is not None and not codec.fits(words, begins, begins + sizes):
                raise self._damage(theirs, "holds no rows of its groups")
            passes.append((active, words, begins, sizes))
            further = (headers[:, kernels.BACK] != NO_ROOT) & (
                headers[:, kernels.BACK_LATEST] > watermark
            )
            if best is not None:
                in_order = headers[:, kernels.LENGTH] & kernels.IN_ORDER != 0
                ends = np.append(begins, len(words))
                further &= ~best.enough(active, words, ends, in_order)
            waiting = np.concatenate((waiting[~newest], active[further]))
            markers = np.concatenate((markers[~newest], headers[further, kernels.BACK]))
        offsets = np.zeros(len(hi) + 1, dtype=np.int64)
        np.cumsum(total, out=offsets[1:])
        out = np.empty(int(offsets[-1]), dtype=np.int64)
        places = offsets[:-1].copy()
        for active, words, begins, sizes in reversed(passes):
            moved = places[active]
            kernels.copy_pieces(words, begins, sizes, out, moved)
            places[active] = moved
        return out, offsets

    def _fetch(self, markers: Ints, hi: Ids, lo: Ids) -> tuple[Ints, Ints, Ints]:
        """Return the words, their numbers and the headers of extents, given by marker ascending."""
        distinct, firsts = np.unique(markers.view(np.uint64), return_index=True)
        ends = np.append(firsts[1:], len(markers))
        headers = np.empty((len(markers), kernels.HEADER), dtype=np.int64)
        sizes = np.empty(len(markers), dtype=np.int64)
        pieces: list[Any] = [None] * len(distinct)
        for marker, payload in self._records(distinct):
            number = int(np.searchsorted(distinct, np.uint64(marker)))
            wanted = slice(int(firsts[number]), int(ends[number]))
            if len(payload) % 8 or not _holds_extents(np.frombuffer(payload, dtype=np.int64)):
                raise self._damage(markers[wanted], "does not hold the extents it tells of")
            record = np.frombuffer(payload, dtype=np.int64)
            found = np.empty(wanted.stop - wanted.start, dtype=np.int64)
            size = kernels.find_extents(record, hi[wanted], lo[wanted], found)
            if (found < 0).any():
                raise self._damage(markers[wanted], "lacks a group that points to it")
            headers[wanted] = _headers(record)[found]
            out = np.empty(size, dtype=np.int64)
            kernels.copy_extents(record, found, out, sizes[wanted])
            pieces[number] = out
            self.traffic.records_read += 1
            self.traffic.bytes_read += len(payload)
        return np.concatenate(pieces), sizes, headers

    def _damage(self, markers: Ints, what: str) -> DamageError:
        """Return an error that names a record, the only one or the first of several."""
        others = "" if (markers == markers[0]).all() else ", or one behind it,"
        told = f"the record at {show_marker(int(markers[0]))}{others} {what}"
        return DamageError(self._space.log.folder, told)

    def _records(self, markers: Ids) -> Iterator[tuple[int, bytes | memoryview]]:
        """Yield records with their markers, those of finished segments first."""
        kept = [marker for marker in markers.tolist() if self._tail.holds(marker)]
        if kept:
            markers = np.setdiff1d(markers, np.array(kept, dtype=np.uint64))
        for record in self._space.log.read_many(markers):
            yield record.marker, record.payload
        for marker in kept:
            yield marker, self._tail.read(marker)


def headers_of(payload: bytes | memoryview) -> Ints:
    """Return the headers of a record; ValueError if it does not hold what they tell of."""
    record = np.frombuffer(payload, dtype=np.int64)
    if not _holds_extents(record):
        msg = "a record does not hold the extents it tells of"
        raise ValueError(msg)
    return _headers(record)


def _headers(record: Ints) -> Ints:
    return record[1 : 1 + int(record[0]) * kernels.HEADER].reshape(-1, kernels.HEADER)


def _holds_extents(record: Ints) -> bool:
    """Tell whether a record is as long as its extents say."""
    if not len(record) or not 0 <= record[0] <= len(record) // kernels.HEADER:
        return False
    lengths = _headers(record)[:, kernels.LENGTH] & kernels.WORDS
    return bool(1 + record[0] * kernels.HEADER + lengths.sum() == len(record))


def picked(words: Ints, begins: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Return pieces of words one after the other, and where each begins and the last one ends."""
    offsets = np.zeros(len(begins) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.int64)
    begins = np.ascontiguousarray(begins)
    kernels.copy_pieces(words, begins, sizes, out, offsets[:-1].copy())
    return out, offsets
