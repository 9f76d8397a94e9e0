"""Packs: one object that holds the files which a task wrote, of all its shards.

Idea: a task writes some small files for each shard. A request costs the same for any of them, so
they are sent as one object. Names of files stay as they are: the files of a task have one attempt
in their names, whose last bit says that they are in a pack, and the pack is named by the attempt.
The pack starts with a directory, so that nothing else has to know where in it a file is.

Invariants:
1. The files of a pack are read as if they were objects (`test_files_of_a_task_are_one_object`).
2. A pack that is cut or changed is damage, not another file
   (`test_a_damaged_pack_is_damage_of_its_file`).
3. A pack is removed with the last of its files that a version names
   (`test_nothing_is_left_in_a_store_that_no_version_names`), or when most of it is dead and what is
   not has become objects (`test_bounded_dead_bytes_in_packs`).

References: `docs/formats/packs.md`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import xxhash

from icestream.core.errors import DamageError
from icestream.state.files import Files, OpenFile

#: what a pack starts with: magic, bytes of the directory, checksum of both and the directory
HEAD = struct.Struct("<8sQQ")
MAGIC = b"icepack1"
#: how the name of a pack ends, after its attempt
PACK = ".pack"
#: a member: bytes of its name, its place after the directory, its bytes
_MEMBER = struct.Struct("<HQQ")
#: most bytes of a directory
_MOST = 64 << 20

_PACKED = re.compile(r"(.*/)[^/]*-([0-9a-f]{15}[13579bdf])\.(?:seg|rows)")


class PackedFile(NamedTuple):
    """Where a file is in a pack."""

    offset: int
    size: int


def pack_of(path: str) -> str | None:
    """Return the pack that a file is in; None if it is an object of its own."""
    found = _PACKED.fullmatch(path)
    return None if found is None else f"{found[1]}{found[2]}{PACK}"


def directory(members: Sequence[tuple[str, int]]) -> bytes:
    """Return the start of a pack, given names and sizes in the order of the data."""
    entries, place = [], 0
    for name, size in members:
        encoded = name.encode()
        entries.append(_MEMBER.pack(len(encoded), place, size) + encoded)
        place += size
    listed = b"".join(entries)
    return HEAD.pack(MAGIC, len(listed), _checksum(listed)) + listed


def members_of(path: str, file: OpenFile) -> Mapping[str, PackedFile]:
    """Return the files in a pack by name; DamageError if it is damaged."""
    head = file.read_at(0, HEAD.size)
    if len(head) < HEAD.size:
        raise DamageError(path, "the pack is too short")
    magic, length, checksum = HEAD.unpack(head)
    if magic != MAGIC or length > min(_MOST, file.size):
        raise DamageError(path, "this is not a pack")
    listed = file.read_at(HEAD.size, length)
    if _checksum(listed) != checksum:
        raise DamageError(path, "the directory of the pack does not match its checksum")
    found, at, first = {}, 0, HEAD.size + length
    while at < length:
        size, place, held = _MEMBER.unpack_from(listed, at)
        at += _MEMBER.size + size
        found[listed[at - size : at].decode()] = PackedFile(first + place, held)
        if first + place + held > file.size:
            raise DamageError(path, "the pack is too short")
    return found


def _checksum(listed: bytes) -> int:
    return xxhash.xxh3_64_intdigest(MAGIC + len(listed).to_bytes(8, "little") + listed)


class OpenMember(OpenFile):
    """A file in a pack, open for reading."""

    def __init__(
        self, pack: OpenFile, member: PackedFile, unpacked: Callable[[], OpenFile]
    ) -> None:
        """Read from an open pack, which is closed with this file.

        If the pack was removed meanwhile, `unpacked` opens the object that the file has become.
        """
        self._pack = pack
        self._first = member.offset
        self._unpacked = unpacked
        self.size = member.size

    def read_at(self, offset: int, length: int) -> bytes:
        length = min(length, max(0, self.size - offset))
        try:
            return self._pack.read_at(self._first + offset, length)
        except FileNotFoundError:
            alone = self._unpacked()
        self._pack.close()
        self._pack, self._first = alone, 0
        return alone.read_at(offset, length)

    def close(self) -> None:
        self._pack.close()


def holder_of(files: Files, path: str) -> str:
    """Return what is listed and removed for a file: the file itself, or its pack."""
    return (pack_of(path) if getattr(files, "packs", False) else None) or path
