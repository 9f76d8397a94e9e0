"""Check that rates, ratios and sizes in the documents come from a stored result of a bench.

Idea: a section that links to `figures/NAME.json` or to its section, or shows its figure, may quote
what is in that file, rounded as it likes; the check looks for a value of the file that rounds to
each number. What no stored result has is marked with where it came from, in the same paragraph or
table: `<!-- measured: COMMIT, COMMAND -->`. Numbers that were not measured, as settings, bounds
and figures of papers, are listed in it as they are written: `<!-- given: 64 MB; 5 times -->`.

Limits: only numbers with a unit count (`events/s`, `MB`, `times`, `ms`, ...) and, in tables, those
with a comma or a point. A number that happens to be in the file passes; `make figures` tells how
old the file is.

usage: python tools/document_numbers.py [PAGE...]     README, docs and guide by default
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: pages about what was measured; of other pages only rates count, and no tables
FIGURES = ("README.md", "docs/performance.md", "docs/nexmark.md", "docs/gallery.md")
_RATES = ("events/s", "rows/s", "times", "a second")
#: factors from a unit of the documents to those of stored results
_UNITS: dict[str, tuple[float, ...]] = {
    "KB": (1e3, 1 << 10),
    "MB": (1e6, 1 << 20),
    "GB": (1e9, 1 << 30),
    "GiB": (1 << 30,),
    "MB/s": (1e6, 1 << 20),
    "GB/s": (1e9, 1 << 30),
    "ms": (1e-3, 1.0),
    "%": (1e-2, 1.0),
    "million": (1e6,),
    "billion": (1e9,),
    "k": (1e3,),
    "M": (1e6,),
    "times": (1.0,),
    "x": (1.0,),
    "bytes": (1.0,),
    "events/s": (1.0,),
    "rows/s": (1.0,),
    "a second": (1.0,),
}
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+|\d+"
_UNIT = "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True))
_MEASURED = re.compile(rf"(?<![\w.,/`#-])(?P<number>{_NUMBER}) ?(?P<unit>{_UNIT})(?![\w])")
_IN_CELL = re.compile(r"(?<![\w.,/`#-])(?P<number>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+)(?![\w.])")
_LINK = re.compile(r"figures/([\w-]+)\.(?:json|png)")
_SECTION = re.compile(r"performance\.md#([\w-]+)")
_COMMIT = re.compile(r"<!-- measured: [0-9a-f]{7,40}, .+? -->", re.DOTALL)
_GIVEN = re.compile(r"<!-- given: (.+?) -->", re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->")


@dataclass(frozen=True)
class Unfounded:
    """A number that no stored result of its section has."""

    page: str
    line: int
    text: str
    results: tuple[str, ...]

    def __str__(self) -> str:
        where = ", ".join(f"{each}.json" for each in self.results) or "no stored result is linked"
        return f"{self.page}:{self.line}: {self.text} ({where})"


def unfounded(page: Path, root: Path = ROOT) -> list[Unfounded]:
    """Return the numbers of a page that come from nowhere."""
    found = []
    name = str(page.relative_to(root))
    for first, lines in _sections(page.read_text().splitlines()):
        results = tuple(dict.fromkeys(_linked("\n".join(lines), root)))
        values = [value for each in results for value in _values(root, each)]
        for offset, block in _blocks(lines):
            whole = "\n".join(block)
            if _COMMIT.search(whole):
                continue
            given = {each.strip() for mark in _GIVEN.findall(whole) for each in mark.split(";")}
            for number, line in enumerate(block, first + offset):
                for text, wanted in _numbers(line, rates=name not in FIGURES):
                    if text not in given and not any(_rounds_to(each, wanted) for each in values):
                        found.append(Unfounded(name, number, text, results))
    return found


def _linked(text: str, root: Path) -> Iterator[str]:
    """Yield the stored results that a section names, itself or through a link to their section."""
    yield from _LINK.findall(text)
    stored = [path.stem for path in sorted((root / "docs" / "figures").glob("*.json"))]
    for heading in _SECTION.findall(text):
        yield from (each for each in stored if heading.startswith(f"{each}-"))


def _sections(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the sections of a page with the number of their first line."""
    begins = [0, *(at for at, line in enumerate(lines) if line.startswith("## ")), len(lines)]
    for begin, end in pairwise(begins):
        yield begin + 1, lines[begin:end]


def _blocks(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield paragraphs and tables, without code and headings; a mark may stand before or after."""
    fenced, block, begin = False, list[str](), 0
    for at, line in enumerate([*lines, ""]):
        if line.startswith("```"):
            fenced = not fenced
        if fenced or line.startswith(("```", "#")) or not line.strip():
            if block:
                yield begin, block
            block = []
        else:
            begin = begin if block else at
            block.append(line)


def _numbers(line: str, *, rates: bool) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """Yield the measured numbers of a line, each with the ranges of values that round to it."""
    plain = _CODE.sub(lambda found: " " * len(found[0]), line)
    taken = set()
    for found in _MEASURED.finditer(plain):
        taken.add(found.start())
        if rates and found["unit"] not in _RATES:
            continue
        yield found[0], [_range(found["number"], factor) for factor in _UNITS[found["unit"]]]
    if line.startswith("|") and not rates:
        for found in _IN_CELL.finditer(plain):
            if found.start() not in taken:
                scales = (1.0, 1e3, 1e6, 1e9, 1 << 20, 1 << 30, 1e-3)
                yield found[0], [_range(found["number"], factor) for factor in scales]


def _range(number: str, factor: float) -> tuple[float, float]:
    """Return the bounds of what is written as a number, to the last digit that is not a zero."""
    digits = number.replace(",", "")
    if "." in digits:
        unit = 10.0 ** -len(digits.partition(".")[2])
    else:
        unit = 10.0 ** (len(digits) - len(digits.rstrip("0")))
    value = float(digits)
    return (value - 0.51 * unit) * factor, (value + 0.51 * unit) * factor


def _rounds_to(value: float, ranges: list[tuple[float, float]]) -> bool:
    """Return whether a value, or how often it goes into one, is written as a number."""
    return any(low <= value <= high for low, high in ranges)


@cache
def _values(root: Path, result: str) -> list[float]:
    """Return all numbers of a stored result."""
    path = root / "docs" / "figures" / f"{result}.json"
    return list(_leaves(json.loads(path.read_text()))) if path.exists() else []


def _leaves(value: object) -> Iterator[float]:
    match value:
        case bool():
            return
        case int() | float():
            yield abs(float(value))
        case str():
            yield from (float(each.replace(",", "")) for each in re.findall(_NUMBER, value))
        case dict():
            for each in value.values():
                yield from _leaves(each)
        case list():
            for each in value:
                yield from _leaves(each)


def main() -> int:
    """Print the numbers without a source; return 1 if there are any."""
    given = [Path(each).resolve() for each in sys.argv[1:]]
    documents = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/guide/*.md")]
    pages = given or [ROOT / "README.md", *sorted(documents)]
    found = [each for page in pages for each in unfounded(page)]
    for each in found:
        print(each)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
