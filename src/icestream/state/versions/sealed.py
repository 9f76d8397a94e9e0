"""JSON with a seal: the format version and a checksum in a line of their own.

Invariants:
1. A flipped byte is a `DamageError` that names the file (`test_damage_in_a_commit_is_named`).
2. A file of a format that this release does not read is refused, naming the release to install
   (`test_another_format_asks_for_another_release`).

References: `docs/formats/commits.md`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash

from icestream.core.errors import CheckpointError, DamageError

#: the format that is written and read
FORMAT = 3

#: digits of a format version, at most
_FORMAT_DIGITS = 9


def sealed(value: Mapping[str, Any]) -> bytes:
    """Return a sealed file: JSON in one line, the format version and a checksum in the next."""
    body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return body + b"\n" + seal(FORMAT, body)


def opened(path: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object of a sealed file."""
    body, _, rest = data.partition(b"\n")
    written = format_of(data)
    if written is not None and written != FORMAT:
        age = "newer" if written > FORMAT else "older"
        msg = (
            f"{path} was written in format {written}, this Icestream reads {FORMAT}: install the "
            f"{age} Icestream that wrote it, or start a new checkpoint"
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
    """Return the seal, the line after a body; the checksum covers the format too."""
    return f"icestream {written} {xxhash.xxh3_64_hexdigest(body, written)}\n".encode()
