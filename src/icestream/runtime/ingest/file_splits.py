"""The files of a batch, and how they are divided among the tasks.

Idea: Spark's scan of a batch lists which bytes of which files it would read. Its own shares are
uneven if files are large relative to them, so the bytes are laid end to end, in the order of the
source's log (`order`), and cut into equal shares. A cut inside a file makes two pieces; a rule of
each format assigns every row to exactly one of them.

Invariants:
1. Shares contain the bytes of all pieces, each once, in order, and differ by at most one byte
   (`test_shares_hold_all_bytes_once_and_are_even`).
2. Spark reads files in partition folders and on other file systems
   (`test_partition_folders_are_left_to_spark`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame

from icestream.runtime.ingest.file_order import place_of
from icestream.runtime.ingest.scans import scans_of

#: with fewer bytes, another task costs more than it saves
LEAST_SHARE = 1 << 20
#: most bytes that one task reads, so that a failed or slow task is not half of the batch
MOST_SHARE = 64 << 20


@dataclass(frozen=True, slots=True)
class FileSplit:
    """A range of bytes of a file."""

    path: str
    start: int
    length: int

    @property
    def end(self) -> int:
        """Return the first byte after the piece."""
        return self.start + self.length

    def holds(self, place: int) -> bool:
        """Return whether a byte of the file is in the piece."""
        return self.start <= place < self.end


def pieces_of(
    batch: DataFrame, owners: Sequence[Callable[[str], bool]], places: Mapping[str, int]
) -> list[FileSplit] | None:
    """Split files as Spark's own scans would split them; None if they are not plain scans.

    The functions in `owners` return whether a file belongs to a source: each source has one scan,
    or none if it has no new files. Pieces are in the order of the files' places.
    """
    found: list[tuple[tuple[int, int, str], FileSplit]] = []
    owned: list[int] = []
    scans = scans_of(batch)
    for scan in scans:
        mine = [
            (
                place_of(each.uri, each.modified, places),
                FileSplit(local_path(each.uri), each.start, each.length),
            )
            for each in scan
        ]
        found += mine
        owned += [n for n, has in enumerate(owners) if all(has(piece.path) for _, piece in mine)]
    apart = 0 < len(scans) == len(owned) == len(set(owned))
    if not apart or not all(piece.path for _, piece in found):
        return None
    return [piece for _, piece in sorted(found, key=lambda each: (each[0], each[1].start))]


def local_path(uri: str) -> str:
    """Return the path of a local file to split, without partition folders, or an empty string."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    plain = parts.scheme in ("", "file") and "=" not in path.rsplit("/", 1)[0]
    return path if plain else ""


def shared_out(pieces: Sequence[FileSplit], workers: int) -> list[list[FileSplit]]:
    """Split pieces of files into equal shares: one per worker, or a multiple of that."""
    total = sum(piece.length for piece in pieces)
    rounds = -(-total // (workers * MOST_SHARE))
    count = max(1, min(workers * rounds, total // LEAST_SHARE))
    bounds = [total * number // count for number in range(count + 1)]
    shares: list[list[FileSplit]] = [[] for _ in range(count)]
    share = passed = 0
    for piece in pieces:
        start = piece.start
        while start < piece.end:
            place = passed + start - piece.start
            while place >= bounds[share + 1]:
                share += 1
            length = min(piece.end - start, bounds[share + 1] - place)
            shares[share].append(FileSplit(piece.path, start, length))
            start += length
        passed += piece.length
    return shares
