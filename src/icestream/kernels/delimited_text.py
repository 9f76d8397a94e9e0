"""Text of lines with delimited values that every parser reads alike.

Idea: what parsers disagree on begins with one of a few bytes. One pass looks at these and their
neighbours; all others cost a look at a table.

Invariant: text is plain exactly if each quote opens or closes a whole, non-empty value of one line
that contains no other quote, no value starts or ends with a blank or starts as a hexadecimal
number, carriage returns are parts of line ends, and there are no escapes, zero bytes or byte order
marks (`test_parity_plain_text_is_what_the_slow_version_accepts`).

Cost: about a nanosecond for a byte.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.kernels.compile import kernel

TAB, NEWLINE, RETURN, BLANK, QUOTE, ZERO, SMALL_X, LARGE_X = (ord(each) for each in '\t\n\r "0xX')
#: zero byte, escape
_REFUSED = (0, ord("\\"))
#: bytes of a byte order mark
_MARK, _MARK_GOES_ON, _MARK_ENDS = 0xEF, 0xBB, 0xBF
_SIGNS = (ord("+"), ord("-"))
_IS_SPECIAL = np.zeros(256, dtype=np.bool_)
_IS_SPECIAL[[TAB, NEWLINE, RETURN, BLANK, QUOTE, SMALL_X, LARGE_X, _MARK, *_REFUSED]] = True


@kernel
def is_plain_text(  # noqa: PLR0912 - one for each kind of letter
    text: npt.NDArray[np.uint8], separator: int
) -> bool:
    """Return whether whole lines have only values that all parsers read alike."""
    opened = -1
    for at in range(text.size):
        letter = text[at]
        if not _IS_SPECIAL[letter] or letter == separator:
            continue
        before = text[at - 1] if at > 0 else np.uint8(NEWLINE)
        after = text[at + 1] if at + 1 < text.size else np.uint8(NEWLINE)
        starts = before in (NEWLINE, separator)
        ends = after in (NEWLINE, RETURN, separator)
        if letter == QUOTE:
            if opened < 0:
                opened = at
                if not starts:
                    return False
            else:
                if not ends or at == opened + 1:
                    return False
                opened = -1
        elif letter in (BLANK, TAB):
            if starts or ends or QUOTE in (before, after):
                return False
        elif letter in (NEWLINE, RETURN):
            if opened >= 0 or (letter == RETURN and (after != NEWLINE or at + 1 == text.size)):
                return False
        elif letter in _REFUSED:
            return False
        elif letter == _MARK:
            if after == _MARK_GOES_ON and at + 2 < text.size and text[at + 2] == _MARK_ENDS:
                return False
        elif before == ZERO:
            first = text[at - 2] if at > 1 else np.uint8(NEWLINE)
            if first in (NEWLINE, QUOTE, separator) or first in _SIGNS:
                return False
    return opened < 0
