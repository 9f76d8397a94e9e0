"""JSON with a seal: the format version and a checksum in a line of their own.

Invariants:
1. A flipped byte is a `DamageError` that names the file (`test_damage_in_a_commit_is_named`).
2. A file of a format that this release does not read is refused, naming the release to install
   or the command that converts it (`test_another_format_asks_for_another_release`).

References: `docs/formats/commits.md`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import xxhash

from icestream.core.errors import CheckpointError, DamageError

#: the format that is written
FORMAT = 4
#: and those that are read: 3 lists all live segments in some commits, and has no manifests
READ = (3, FORMAT)

#: digits of a format version, at most
_FORMAT_DIGITS = 9


def sealed(value: Mapping[str, Any]) -> bytes:
    """Return a sealed file: JSON in one line, the format version and a checksum in the next."""
    body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return body + b"\n" + seal(FORMAT, body)


def opened(path: str, data: bytes, older: Collection[int] = ()) -> dict[str, Any]:
    """Return the JSON object of a sealed file, which may have one of some `older` formats."""
    body, _, rest = data.partition(b"\n")
    written = format_of(data)
    if written is not None and written not in (*READ, *older):
        age = "newer" if written > FORMAT else "older"
        convert = "" if written > FORMAT else ", convert it with `icestream state upgrade`"
        msg = (
            f"{path} was written in format {written}, this Icestream reads {READ[0]} and "
            f"{FORMAT}: install the {age} Icestream that wrote it{convert}, or start a new "
            "checkpoint"
        )
        raise CheckpointError(msg)
    if written is None or rest != seal(written, body):
        raise DamageError(path, "its checksum does not match its content")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DamageError(path, f"its content is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise DamageError(path, "its content is no JSON object")
    return value


def format_of(data: bytes) -> int | None:
    """Return the format version that a sealed file claims; None if it claims none."""
    words = data.partition(b"\n")[2].split(b" ")
    if len(words) != 3 or words[0] != b"icestream" or not words[1].isdigit():
        return None
    return int(words[1]) if len(words[1]) <= _FORMAT_DIGITS else None


def seal(written: int, body: bytes) -> bytes:
    """Return the seal, the line after a body; since format 3 its checksum covers the format."""
    seed = written if written >= 3 else 0
    return f"icestream {written} {xxhash.xxh3_64_hexdigest(body, seed)}\n".encode()
