"""Ids of attempts, which tell the epoch that wrote a file.

Idea: segments and result files carry the id of the attempt that wrote them in their names: 16
hexadecimal digits, of which the first six are the epoch of the owner and the others are random.
Whoever sweeps knows from a name alone whether a newer owner may be about to commit the file.

Limits: 2**24 - 1 epochs, one for each time a checkpoint is opened for writing. Files of releases
before epochs have 16 random digits; what they left behind is known by the time it was listed
(`runtime.version.retention`).
"""

from __future__ import annotations

import re
import uuid

#: the last epoch there can be
LAST_EPOCH = 2**24 - 1

_EPOCH_DIGITS = 6
_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{6})[0-9a-f]{10}(?![0-9a-f])")


def new_attempt(epoch: int) -> str:
    """Return an id that no other attempt has."""
    return f"{epoch:0{_EPOCH_DIGITS}x}{uuid.uuid4().hex[: 16 - _EPOCH_DIGITS]}"


def epoch_of(name: str) -> int:
    """Return the epoch of the attempt that a file's name tells; 0 for a name that tells none."""
    found = _ID.search(name)
    return 0 if found is None else int(found[1], 16)
