"""Records whose checksums hold and that still make no sense are damage, too.

Idea: operators trust what they read back, because every byte was checked against a checksum. A
file that a bug wrote, or that somebody signed again, passes; what stumbles over it then is some
array or decoder deep inside, with an error that tells a user nothing. Whoever restores state does
it inside `sensible`, which names the file to blame instead.

Invariants:
1. No error but ours leaves a restore of signed records, whatever they hold
   (`test_signed_nonsense_in_any_state_is_an_error_of_ours`).

Limits: kernels check no bounds; what they walk by must be checked before they walk
(`icestream.kernels`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from icestream.core.errors import DamageError, IcestreamError

#: what arrays, decoders and checks of our own raise when numbers do not fit each other
_STUMBLES = (
    *(ArithmeticError, AssertionError, EOFError, LookupError, TypeError, ValueError),
    pa.ArrowException,
)


@contextmanager
def sensible(path: str) -> Iterator[None]:
    """Blame a file for whatever goes wrong inside the block, errors of ours apart."""
    try:
        yield
    except (IcestreamError, MemoryError):
        raise
    except _STUMBLES as error:
        raise _nonsense(path, error) from error
    except OSError as error:
        # Arrow raises it without a number when a message cannot be decoded
        if error.errno is not None:
            raise
        raise _nonsense(path, error) from error


def _nonsense(path: str, error: Exception) -> DamageError:
    what = f"its records pass their checksums and make no sense ({type(error).__name__}: {error})"
    return DamageError(path, what)
