"""Obvious twin of the kernel of delimited text: a regular expression for each line."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt


def is_plain_text_reference(text: npt.NDArray[np.uint8], separator: int) -> bool:
    between = re.escape(chr(separator))
    blank = " " if separator == ord("\t") else " \t"
    start, end = rf"(?![{blank}]|[+-]?0[xX])", rf"(?<![{blank}])"
    bare = rf'{start}[^"\r\n\\\0{between}]*{end}'
    quoted = rf'"{start}[^"\r\n\\\0]+{end}"'
    value = rf"(?:{quoted}|{bare})"
    line = rf"{value}(?:{between}{value})*"
    content = text.tobytes().decode("latin1")
    has_mark = "\xef\xbb\xbf" in content
    return not has_mark and re.fullmatch(rf"{line}(?:\r?\n{line})*", content) is not None
