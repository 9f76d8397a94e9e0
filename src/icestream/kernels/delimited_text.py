"""Text of lines with delimited values that every parser reads alike.

Idea: what parsers disagree on begins with a quote, a blank or a carriage return. One pass looks at
these bytes and their neighbours; all others cost a comparison.

Invariant: text is plain exactly if each quote opens or closes a whole, non-empty value of one line
that contains no other quote, no value starts or ends with a blank, and carriage returns are
parts of line ends (`test_parity_plain_text_is_what_the_slow_version_accepts`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.kernels.compile import kernel

TAB, NEWLINE, RETURN, BLANK, QUOTE = 9, 10, 13, 32, 34


@kernel
def is_plain_text(text: npt.NDArray[np.uint8], separator: int) -> bool:
    """Return whether whole lines have only values that all parsers read alike."""
    opened = -1
    for at in range(text.size):
        letter = text[at]
        if letter > QUOTE or letter == separator:
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
            if starts or ends or before == QUOTE or after == QUOTE:
                return False
        elif letter in (NEWLINE, RETURN) and (
            opened >= 0 or (letter == RETURN and after != NEWLINE)
        ):
            return False
    return opened < 0
