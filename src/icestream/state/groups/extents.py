"""Extents on the log: rows of many groups in one record, chained back in time.

Idea: rows added to several groups are written together, sorted by id, in records of about 256 KB. A
group stores the marker of its extent inside the record. An extent has a checksum, points back to
the group's previous extent and carries the latest expiry of everything behind it, so a chain is
followed only as long as it has live rows, and a segment is deleted as a whole. Many chains are read
together: through all mapped segments at once, touching nothing but their extents, and segment by
segment, newest first, where blocks have to be read.

Invariants:
1. Reading a chain gives its rows, oldest first (`test_oracle_chains_are_read_oldest_first`).
2. Nothing of an expired segment is read (`test_a_chain_ends_where_all_has_expired`).
3. Each extent is read once, and nothing else (`test_bounded_a_pass_reads_each_extent_once`).
4. Damage names the file (`test_damage_in_an_extent_names_the_file`).
5. An extent other than the one a group points to is damage; so are words that are not rows, and
   a chain that does not lead back (`test_extents_that_make_no_sense_are_damage`).

Cost: 56 bytes per extent, 32 or 40 if its rows never expire; a pass per segment with extents of the
chains that cannot be mapped.

Limits: 2**16 - 1 extents in a chain, 2**32 words in an extent.

References: delta updates and expiry markers of log-structured cold state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from icestream.core.arrays import Ids, Ints
from icestream.core.errors import DamageError
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.kernels.groups import chains
from icestream.kernels.groups import extents as kernels
from icestream.kernels.groups.heap import NO_ROOT
from icestream.kernels.rows import last_row_end
from icestream.state.groups.options import ROWS, StoreSpace, forever
from icestream.state.groups.ranked import PIECES, Best
from icestream.state.groups.unsealed import UnsealedRecords
from icestream.state.log.format import show_marker
from icestream.state.log.mapped_segments import MappedSegments
from icestream.state.log.reader import RecordRange
from icestream.state.rows import RowCodec
from icestream.state.versions.commits import BASE

#: kinds of records other than extents, in place of a synopsis
REMINDERS = 0xFFF0
ENTRIES = 0xFFF1
NUMBERS = 0xFFF2
SEGMENTS = 0xFFF3

_UNSOUND = "holds no sound extent of the group it is for"
_ASTRAY = "does not lead back to the beginning of a chain"
_NO_ROWS = "holds no rows of its groups"


@dataclass(frozen=True)
class Extents:
    """Extents to be written, sorted by id, one of each group."""

    #: columns as in `kernels.groups.extents`
    headers: Ints
    #: words, and where those of each extent begin; its header has their number
    words: Ints
    begins: Ints

    def filled(self) -> Ints:
        """Return the cumulative number of words of the extents in records, starting at 0."""
        ends = np.empty(len(self.headers) + 1, dtype=np.int64)
        kernels.sum_up(self.headers, ends)
        return ends

    def of(self, places: Ints) -> Extents:
        return Extents(self.headers[places], self.words, self.begins[places])


@dataclass
class LogTraffic:
    """Bytes written to the log and read back."""

    extents: int = 0
    records: int = 0
    bytes: int = 0
    #: extents read, and bytes of their rows
    extents_read: int = 0
    bytes_read: int = 0
    #: bytes and latest expiry by segment
    segments: dict[int, tuple[int, int]] = field(default_factory=dict)


class Chains:
    """Chains that were followed; their words have not been copied yet."""

    def __init__(
        self,
        log: ExtentLog,
        roots: Ints,
        pieces: Ints,
        fetched: list[Ints],
        codec: RowCodec | None,
    ) -> None:
        """Describe pieces, newest first in each chain, in mapped segments or in `fetched`."""
        self._log = log
        self._fetched = fetched
        self.roots = roots
        self.pieces = pieces
        #: codec of the rows that the words must be, if known
        self.codec = codec
        sizes = np.bincount(pieces[:, chains.CHAIN], pieces[:, chains.SIZE], len(roots))
        #: words of each chain
        self.sizes = sizes.astype(np.int64)

    def copy(self, out: Ints, places: Ints) -> None:
        """Copy the words of each chain, oldest first, to its place; move the place past them."""
        self._log.copy(self, out, places)


@dataclass
class ChainPieces:
    """The rows of one chain, oldest first, about as many words in each piece."""

    _log: ExtentLog
    #: extent of rows that follow each other on the log, and markers of their first and last word
    _stretches: list[list[tuple[int, int, int]]]

    @property
    def count(self) -> int:
        return len(self._stretches)

    def words(self, number: int) -> Ints:
        """Return the words of a piece; single rows may be expired."""
        return self._log.copied(self._stretches[number])


class ExtentLog:
    """The extents of one store."""

    def __init__(self, space: StoreSpace, scope: int, name: str, record_bytes: int) -> None:
        """Write and read records of operator `scope`."""
        self._space = space
        self._scope = scope
        self._record_words = record_bytes // 8
        self._unsealed = UnsealedRecords(space.arena, name)
        self._maps = MappedSegments(space.log)
        self.traffic = LogTraffic()
        #: ordinals of the segments last written, by lifetime class
        self.open: dict[str, int] = {}

    # -- writing ---------------------------------------------------------------------------

    def write(self, synopsis: int, extents: Extents, sequence: int, *, mirrored: bool) -> Ints:
        """Append extents; return their markers. Mirrored ones can be read at once."""
        markers = np.full(len(extents.headers), NO_ROOT, dtype=np.int64)
        never = extents.headers[:, kernels.LATEST] == INFINITY
        for lifetime, chosen in ((ROWS, ~never), (forever(self._scope), never)):
            if chosen.all():
                return self._append(lifetime, synopsis, extents, sequence, mirrored)
            if chosen.any():
                at = np.flatnonzero(chosen)
                markers[at] = self._append(lifetime, synopsis, extents.of(at), sequence, mirrored)
        return markers

    def _append(
        self, lifetime: str, synopsis: int, extents: Extents, sequence: int, mirrored: bool
    ) -> Ints:
        writer = self._space.segment(lifetime)
        if self.open.get(lifetime) != writer.ordinal:
            self.open[lifetime] = writer.ordinal
            self._unsealed.begin(set(self.open.values()))
        headers, words, begins = extents.headers, extents.words, extents.begins
        markers = np.empty(len(headers), dtype=np.int64)
        filled = extents.filled()
        written, first = 0, 0
        while first < len(headers):
            room = filled[first] + self._record_words
            last = max(first + 1, int(np.searchsorted(filled, room, side="right")) - 1)
            record = np.empty(int(filled[last] - filled[first]), dtype=np.int64)
            marker = writer.next_marker
            kernels.lay_out(headers, words, begins, first, last, marker, record, markers)
            writer.append(
                record,
                operator=self._scope,
                synopsis=synopsis,
                group=sequence,
                rows=last - first,
                expiry=int(headers[first:last, kernels.LATEST].max()),
            )
            if mirrored:
                self._unsealed.keep(marker, record)
            self.traffic.records += 1
            written += record.nbytes
            first = last
        self.traffic.bytes += written
        size, expiry = self.traffic.segments.get(writer.ordinal, (0, MINUS_INFINITY))
        latest = max(expiry, int(headers[:, kernels.LATEST].max(initial=MINUS_INFINITY)))
        self.traffic.segments[writer.ordinal] = size + written, latest
        self.traffic.extents += len(headers)
        return markers

    def save(self, kind: int, rows: Ints) -> None:
        """Append rows that only a restore reads; they live as long as a snapshot."""
        writer = self._space.segment(BASE)
        some = max(1, self._record_words // max(1, rows.shape[1]))
        for first in range(0, len(rows), some):
            part = rows[first : first + some]
            writer.append(part, operator=self._scope, synopsis=kind, rows=len(part))

    # -- reading ---------------------------------------------------------------------------

    def read_chains(
        self,
        id_high: Ids,
        id_low: Ids,
        roots: Ints,
        expiries: Ints,
        watermark: int,
        best: Best | None = None,
        codec: RowCodec | None = None,
    ) -> Chains:
        """Follow the chains behind roots; copy their words before any other call.

        Extents that have expired as a whole at the watermark are not read; single rows may be
        expired. If only the best rows are needed, a chain is left once it has enough of them. With
        a codec the words must be its rows (DamageError).
        """
        # extents that may still follow: their places in the chain descend
        left = np.full(len(id_high), np.iinfo(np.int64).max)
        markers = np.where(expiries > watermark, roots, NO_ROOT)
        pieces, kept = [np.empty((0, chains.PIECE), dtype=np.int64)], []
        while True:
            if best is None:
                pieces.append(self._follow(markers, id_high, id_low, watermark, left))
            waiting = np.flatnonzero(markers != NO_ROOT)
            if not len(waiting):
                break
            ordinals = markers[waiting] >> 32
            active = waiting[ordinals == ordinals.max()]
            active = active[np.argsort(markers[active], kind="stable")]
            theirs = markers[active]
            words, sizes, headers = self._fetch(theirs, id_high[active], id_low[active])
            kept.append(words)
            begins = np.cumsum(sizes) - sizes
            places = PIECES * (headers[:, kernels.SHAPE] >> 32)
            left[active] = np.minimum(left[active] - 1, places + PIECES - 1)
            if (left[active] < places).any():
                raise self._damage(theirs, _ASTRAY)
            addresses = words.ctypes.data + 8 * begins
            pieces.append(np.column_stack((active, addresses, sizes)))
            further = (headers[:, kernels.BACK] != NO_ROOT) & (
                headers[:, kernels.BACK_LATEST] > watermark
            )
            if best is not None:
                if codec is not None and not codec.fits(words, begins, begins + sizes):
                    raise self._damage(theirs, _NO_ROWS)
                in_order = headers[:, kernels.LENGTH] & kernels.IN_ORDER != 0
                ends = np.append(begins, len(words))
                further &= ~best.enough(active, words, ends, in_order)
            markers[active] = np.where(further, headers[:, kernels.BACK], NO_ROOT)
        return Chains(self, roots, np.concatenate(pieces), kept, codec)

    def pieces(
        self, id_high: Ids, id_low: Ids, root: int, watermark: int, most: int, codec: RowCodec
    ) -> ChainPieces:
        """Follow one chain, up to what has expired as a whole, and cut it into pieces.

        The chain may be replaced before they are read. A row of more than `most` words is a piece.
        """
        stretches: list[tuple[int, int, int]] = []
        left = np.iinfo(np.int64).max
        while root != NO_ROOT:
            at, size = np.array([root]), np.empty(1, dtype=np.int64)
            origin, stream = self._stream(root)
            if kernels.measure_extents(stream, origin, at, id_high, id_low, size) == 0:
                raise self._damage(at, _UNSOUND)
            headers = np.empty((1, kernels.HEADER), dtype=np.int64)
            begin = kernels.copy_header(stream, root - origin, headers, 0)
            words = stream[begin : begin + int(size[0])]
            if not codec.fits(words, np.zeros(1, np.int64), size):
                raise self._damage(at, _NO_ROWS)
            place = PIECES * int(headers[0, kernels.SHAPE] >> 32)
            left = min(left - 1, place + PIECES - 1)
            if left < place:
                raise self._damage(at, _ASTRAY)
            self.traffic.extents_read += 1
            self.traffic.bytes_read += 8 * int(size[0])
            first = origin + begin
            cuts = [(root, first + low, first + high) for low, high in _cut(words, most)]
            stretches += reversed(cuts)
            is_over = headers[0, kernels.BACK_LATEST] <= watermark
            self._maps.rest((root >> 32,))
            root = NO_ROOT if is_over else int(headers[0, kernels.BACK])
        return ChainPieces(self, _packed(reversed(stretches), most))

    def copied(self, stretches: Sequence[tuple[int, int, int]]) -> Ints:
        """Return words of extents that `pieces` found sound."""
        parts = []
        for marker, first, last in stretches:
            origin, stream = self._stream(marker)
            parts.append(stream[first - origin : last - origin].copy())
        self._maps.rest({marker >> 32 for marker, _, _ in stretches})
        return np.concatenate(parts)

    def _stream(self, marker: int) -> tuple[int, Ints]:
        """Return words around an extent, valid until `rest`, and the marker of the first one."""
        at = np.array([marker])
        unsealed = self._unsealed.holds(at).all()
        found = self._unsealed.stretches(at) if unsealed else self._stretches(at)
        origin, stream, _ = next(found)
        return origin, stream

    def _follow(self, markers: Ints, id_high: Ids, id_low: Ids, watermark: int, left: Ints) -> Ints:
        """Follow chains through all segments that can be mapped; return the pieces found."""
        pieces = np.empty((2 * len(markers) + 64, chains.PIECE), dtype=np.int64)
        count = 0
        while True:
            count, end = chains.follow(
                self._maps.table, markers, id_high, id_low, watermark, PIECES, left, pieces, count
            )
            if end == chains.FULL:
                pieces = np.concatenate((pieces, np.empty_like(pieces)))
            elif end != chains.DONE:
                what = _UNSOUND if end < len(markers) else _ASTRAY
                raise self._damage(markers[[end % len(markers)]], what)
            else:
                ahead = set((markers[markers != NO_ROOT] >> 32).tolist()) - self._unsealed.ordinals
                if not self._maps.add(sorted(ahead)):
                    break
        self.traffic.extents_read += count
        self.traffic.bytes_read += 8 * int(pieces[:count, chains.SIZE].sum())
        return pieces[:count]

    def copy(self, found: Chains, out: Ints, places: Ints) -> None:
        """Copy words of chains; their segments may be unmapped then."""
        begins = places.copy()
        chains.copy_back(found.pieces, out, places)
        self._maps.rest()
        if found.codec is not None and not found.codec.fits(out, begins, places):
            raise self._damage(found.roots[found.roots != NO_ROOT], _NO_ROWS)

    def _fetch(self, markers: Ints, id_high: Ids, id_low: Ids) -> tuple[Ints, Ints, Ints]:
        """Return the words of extents of one segment, their lengths and headers.

        Markers ascend.
        """
        kept = self._unsealed.holds(markers)
        if not kept.any():
            return self._take(self._stretches(markers), markers, id_high, id_low)
        if kept.all():
            return self._take(self._unsealed.stretches(markers), markers, id_high, id_low)
        parts = [self._fetch(markers[some], id_high[some], id_low[some]) for some in (kept, ~kept)]
        order = np.argsort(np.concatenate((np.flatnonzero(kept), np.flatnonzero(~kept))))
        words, sizes, headers = (np.concatenate(each) for each in zip(*parts, strict=True))
        ordered, _ = picked(words, (np.cumsum(sizes) - sizes)[order], sizes[order])
        return ordered, sizes[order], headers[order]

    def rest(self) -> None:
        """Close files that were open for reading."""
        self._maps.clear()

    def _stretches(self, markers: Ints) -> Iterator[RecordRange]:
        ordinal = int(markers[0]) >> 32
        words = self._maps.words(ordinal)
        if words is None:
            return self._space.log.stretches(markers)
        return iter((RecordRange(ordinal << 32, words, len(markers)),))

    def _take(
        self, stretches: Iterator[RecordRange], markers: Ints, id_high: Ids, id_low: Ids
    ) -> tuple[Ints, Ints, Ints]:
        """Copy extents out of the log ranges that contain them, and no more."""
        headers = np.empty((len(markers), kernels.HEADER), dtype=np.int64)
        sizes = np.empty(len(markers), dtype=np.int64)
        pieces: list[Ints] = []
        first = 0
        for origin, stream, count in stretches:
            some = slice(first, first + count)
            theirs = markers[some]
            sound = kernels.measure_extents(
                stream, origin, theirs, id_high[some], id_low[some], sizes[some]
            )
            if sound < count:
                raise self._damage(theirs[sound:], _UNSOUND)
            out = np.empty(int(sizes[some].sum()), dtype=np.int64)
            kernels.copy_extents(stream, origin, theirs, headers[some], out)
            pieces.append(out)
            first += count
        self.traffic.extents_read += len(markers)
        self.traffic.bytes_read += 8 * int(sizes.sum())
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces), sizes, headers

    def _damage(self, markers: Ints, what: str) -> DamageError:
        """Return an error that refers to an extent, the only one or the first of several."""
        others = "" if (markers == markers[0]).all() else ", or one behind it,"
        problem = f"the extent at {show_marker(int(markers[0]))}{others} {what}"
        return DamageError(self._space.log.path_of(int(markers[0])), problem)


def extents_of(payload: bytes | memoryview) -> tuple[Ints, Ints]:
    """Return where the extents of a record begin, and their headers; ValueError if it has none."""
    most = len(payload) // (8 * kernels.LEAST_HEADER)
    if len(payload) and len(payload) % 8 == 0:
        record = np.frombuffer(payload, dtype=np.int64)
        places = np.empty(most, dtype=np.int64)
        headers = np.empty((most, kernels.HEADER), dtype=np.int64)
        count = kernels.list_extents(record, places, headers)
        if count >= 0:
            return places[:count], headers[:count]
    msg = "a record does not contain the extents that its header lists"
    raise ValueError(msg)


def _cut(words: Ints, most: int) -> Iterator[tuple[int, int]]:
    """Yield where parts of rows begin and end, of about `most` words each."""
    begin = 0
    while begin < len(words):
        end = last_row_end(words, begin, most)
        end = begin + int(words[begin] >> 32) if end == begin else end
        yield begin, end
        begin = end


def _packed(
    stretches: Iterable[tuple[int, int, int]], most: int
) -> list[list[tuple[int, int, int]]]:
    """Put consecutive stretches together while they have at most `most` words."""
    pieces: list[list[tuple[int, int, int]]] = []
    room = 0
    for stretch in stretches:
        size = stretch[2] - stretch[1]
        if not pieces or size > room:
            pieces.append([])
            room = most
        pieces[-1].append(stretch)
        room -= size
    return pieces


def picked(words: Ints, begins: Ints, sizes: Ints) -> tuple[Ints, Ints]:
    """Return pieces of words of extents one after the other, and the bounds of each."""
    offsets = np.zeros(len(begins) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.int64)
    begins = np.ascontiguousarray(begins)
    kernels.copy_pieces(words, begins, sizes, out, offsets[:-1].copy())
    return out, offsets
