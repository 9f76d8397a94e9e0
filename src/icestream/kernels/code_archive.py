"""Machine code in one file, sent by the driver of a cluster to executors that have none.

Idea: the driver packs the code of the present sources into a file that is named by a digest of its
content, and Spark copies it into the working folder of every executor before the first task. There
the process that forks Python workers names that folder (`receive_from`), and whoever misses code
unpacks the file, once on a host. Code lies by the digest of its sources: that of other sources is
never found.

Invariants:
1. Only a file whose content has the digest in its name is unpacked, and only by names of machine
   code (`test_an_archive_that_was_changed_is_not_unpacked`).
2. Executors with no code compile nothing that the driver has
   (`test_executors_compile_nothing_that_the_driver_has`).

Limits: whoever can write to the working folder of an executor can also replace the modules that it
imports; the archive needs no more trust than these. Executors that Spark starts later receive the
same file, without what the driver compiled since.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_ARCHIVE = re.compile(r"icestream-code-([0-9a-f]{32})\.zip")
_MEMBER = re.compile(r"\d/[0-9a-f]{24}/[\w.-]+\.nb[ic]")
_RECEIVED = "received"
#: the folders into which Spark copies files for this process
_incoming: list[str] = []


def receive_from(folder: str) -> None:
    """Look for archives in this folder from now on, here and in processes that are forked."""
    _incoming.append(folder)


def packed(roots: Iterable[str], digests: Iterable[str], folder: str) -> str | None:
    """Write the code of some sources into an archive; return its path, or None without code."""
    wanted = sorted(set(digests))
    content = {
        f"{number}/{digest}/{path.name}": path.read_bytes()
        for number, root in enumerate(roots)
        for digest in wanted
        for path in Path(root, digest).glob("*.nb[ic]")
    }
    if not content:
        return None
    target = os.path.join(folder, f"icestream-code-{_digest(content)}.zip")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with zipfile.ZipFile(f"{target}.{os.getpid()}", "w") as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    os.replace(f"{target}.{os.getpid()}", target)
    return target


def received_folders(own: str) -> Iterator[str]:
    """Yield the folders of code that a driver sent; the first time, unpack it."""
    for incoming in _incoming:
        for each in sorted(os.listdir(incoming)):
            if (named := _ARCHIVE.fullmatch(each)) is None:
                continue
            target = os.path.join(own, _RECEIVED, named[1])
            if os.path.isdir(target) or _unpack(os.path.join(incoming, each), named[1], target):
                yield from (os.path.join(target, root) for root in sorted(os.listdir(target)))


def _unpack(path: str, digest: str, target: str) -> bool:
    """Unpack an archive under its digest; return whether its content is there."""
    try:
        with zipfile.ZipFile(path) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return False
    if _digest(content) != digest or not all(map(_MEMBER.fullmatch, content)):
        return False
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as scratch:
        for name, data in content.items():
            file = Path(scratch, "code", name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        # another process may have been faster
        with suppress(OSError):
            os.rename(os.path.join(scratch, "code"), target)
    return os.path.isdir(target)


def _digest(content: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(content):
        digest.update(f"{name}\0{len(content[name])}\0".encode())
        digest.update(content[name])
    return digest.hexdigest()[:32]
