"""The files of a batch, and how they are divided among the tasks.

Idea: Spark's scan of a batch lists which bytes of which files it would read. Its own shares are
uneven if files are large relative to them, so the bytes are laid end to end, by path, and cut into
equal shares. A cut inside a file makes two pieces; a rule of each format assigns every row to
exactly one of them.

Invariants:
1. Shares contain the bytes of all pieces, each once, in order, and differ by at most one byte
   (`test_shares_hold_all_bytes_once_and_are_even`).
2. Spark reads files in partition folders and on other file systems
   (`test_partition_folders_are_left_to_spark`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame

#: with fewer bytes, another task costs more than it saves
LEAST_SHARE = 2 << 20
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


def pieces_of(batch: DataFrame, owners: Sequence[Callable[[str], bool]]) -> list[FileSplit] | None:
    """Return what Spark's own scans of the batch would read; None if they are not plain scans.

    The functions in `owners` return whether a file belongs to a source: each source has one scan,
    or none if it has no new files.
    """
    found: list[FileSplit] = []
    owned: list[int] = []
    scans = 0
    waiting = [batch._jdf.queryExecution().logical().rdd()]
    while waiting:
        rdd = waiting.pop()
        if rdd.getClass().getSimpleName() == "FileScanRDD":
            mine = [
                piece for each in items(rdd.filePartitions()) for piece in _pieces(each.files())
            ]
            found += mine
            owned += [n for n, has in enumerate(owners) if all(has(each.path) for each in mine)]
            scans += 1
        waiting += [each.rdd() for each in items(rdd.dependencies())]
    plain = 0 < scans == len(owned) == len(set(owned)) and all(piece.path for piece in found)
    return sorted(found, key=lambda piece: (piece.path, piece.start)) if plain else None


def _pieces(files: Any) -> Iterator[FileSplit]:
    for file in files:
        yield FileSplit(local_path(file.urlEncodedPath()), file.start(), file.length())


def local_path(uri: str) -> str:
    """Return the path of a local file without partition folders, or an empty string."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    plain = parts.scheme in ("", "file") and "=" not in path.rsplit("/", 1)[0]
    return path if plain else ""


def shared_out(pieces: Sequence[FileSplit], workers: int) -> list[list[FileSplit]]:
    """Cut pieces into equal shares: one per worker, or a multiple of that."""
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


def items(sequence: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence."""
    for place in range(sequence.size()):
        yield sequence.apply(place)
