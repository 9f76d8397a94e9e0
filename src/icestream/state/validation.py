"""Records with valid checksums but invalid content are damage, too.

Idea: operators trust what they read back, because every byte was checked against a checksum. A
file that a bug wrote, or that somebody signed again, passes; then some array or decoder deep inside
fails with an error that does not help the user. Code that restores state therefore runs inside
`validated`, which names the damaged file instead.

Invariants:
1. A restore of signed records raises only errors of Icestream, whatever they contain
   (`test_signed_nonsense_in_any_state_is_an_error_of_ours`).

Limits: kernels check no bounds; check what they use as an index before they run
(`icestream.kernels`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from icestream.core.errors import DamageError, IcestreamError

#: what arrays, decoders and our own checks raise for inconsistent numbers
_STUMBLES = (
    *(ArithmeticError, AssertionError, EOFError, LookupError, TypeError, ValueError),
    pa.ArrowException,
)


@contextmanager
def validated(path: str) -> Iterator[None]:
    """Attribute any error while content is validated to a file, except errors of Icestream."""
    try:
        yield
    except (IcestreamError, MemoryError):
        raise
    except _STUMBLES as error:
        raise _nonsense(path, error) from error
    except OSError as error:
        # Arrow raises it without an errno when a message cannot be decoded
        if error.errno is not None:
            raise
        raise _nonsense(path, error) from error


def _nonsense(path: str, error: Exception) -> DamageError:
    what = f"its records have valid checksums but invalid content ({type(error).__name__}: {error})"
    return DamageError(path, what)
