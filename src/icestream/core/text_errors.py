"""Errors that point at a span of a text.

Idea: an error shows the line of a span, marks the span and says what to do; an unknown word comes
with the closest known one.

Invariants:
1. The mark is under the words that the message is about (`test_errors_point_at_the_place`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from icestream.core.errors import DefinitionError

#: maximum columns of a shown line
_SHOWN = 100
#: likeness of two words from which on one is taken for the other, mistyped
TYPO = 0.85


@dataclass(frozen=True, order=True)
class TextSpan:
    """A part of a text: from one character up to, but not including, another."""

    start: int
    end: int


def error_at(
    text: str, place: TextSpan, message: str, *, numbered: bool = False
) -> DefinitionError:
    """Return an error that shows the line of a text that it is about, and marks the place."""
    start = max(0, min(place.start, len(text)))
    first = text.rfind("\n", 0, start) + 1
    line = text[first:].split("\n", 1)[0].replace("\t", " ")
    before = start - first
    cut = max(0, before - _SHOWN // 2)
    shown = line[cut : cut + _SHOWN].rstrip()
    label = f"  line {text.count(chr(10), 0, start) + 1}: " if numbered else "  "
    width = max(1, min(place.end - start, len(shown) - (before - cut)))
    mark = " " * (len(label) + before - cut) + "^" * width
    return DefinitionError(f"{message}\n{label}{shown}\n{mark}")


def guess(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return `; did you mean ...?` for an error's text if a known word is close, else nothing."""
    names = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), names, n=1, cutoff=likeness)
    return f"; did you mean {names[close[0]]!r}?" if close else ""
