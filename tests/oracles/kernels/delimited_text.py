"""Obvious twin of the kernel of delimited text: a regular expression for each line."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt


def find_values_reference(
    text: npt.NDArray[np.uint8], separator: int, null: str, columns: int
) -> list[list[str | None]] | None:
    """Return the values of each line that is not empty; None if text is not plain."""
    between = re.escape(chr(separator))
    blank = " " if separator == ord("\t") else " \t"
    start, end = rf"(?![{blank}]|[+-]?0[xX])", rf"(?<![{blank}])"
    bare = rf'{start}[^"\r\n\\\0{between}]*{end}'
    quoted = rf'"{start}[^"\r\n\\\0]+{end}"'
    value = rf"(?:{quoted}|{bare})"
    line = rf"{value}(?:{between}{value})*"
    content = text.tobytes().decode("latin1")
    has_mark = "\xef\xbb\xbf" in content
    if has_mark or re.fullmatch(rf"{line}(?:\r?\n{line})*", content) is None:
        return None
    found: list[list[str | None]] = []
    for each in re.split("\r?\n", content):
        values = re.findall(rf'(?:^|{between})("[^"]*"|[^{between}]*)', each) if each else []
        plain = [one.removeprefix('"').removesuffix('"') for one in values]
        if each:
            found.append([None if one in ("", null) else one for one in plain])
    return found if all(len(each) == columns for each in found) else None
