"""Fields: the partial aggregates that entries, panes and groups are made of.

Idea: an aggregate function is a few fields plus a way to compute its answer from them. Functions
over one column share fields (`sum(x)` and `avg(x)` share one sum), so a row holds each fact once.
Fields have fixed sizes, except sums of doubles: these are fixed-point numbers
(`kernels.double_sums`), and how many digits they have depends on the values seen. So two tables
of the same fields may have different layouts; `exact_rows` converts between them.

    fields   number of events, others of fixed size | digits and specials of each sum of doubles
    entry    id_high, id_low | fields
    group    id_high, id_low, last pane, changed | fields | front of each field without an inverse
             | for sliding windows: the next front and the next back of each of those

Invariant: no two fields share a word (`test_no_two_fields_share_a_word`,
`test_rows_of_sliding_windows_have_the_next_suffix_and_back_behind`).

Limits: fewer than 2**40 values are added up in one sum of doubles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels import double_sums
from icestream.kernels import field_words as words

#: how each kind of field is merged
OPERATIONS = {
    "rows": words.ADD_I64,
    "valid": words.ADD_I64,
    "sum_i64": words.ADD_I64,
    "sum_i128": words.ADD_I128,
    "sum_f64": words.ADD_FIXED,
    "squares_f64": words.ADD_FIXED,
    "products_f64": words.ADD_FIXED,
    "products_i128": words.ADD_I128,
    "min": words.MIN,
    "max": words.MAX,
    "first": words.LEAST_4,
    "last": words.LEAST_4,
    "first_valid": words.LEAST_4,
    "last_valid": words.LEAST_4,
    "least_by": words.LEAST_5,
    "most_by": words.LEAST_5,
}

#: kinds of fields that depend on the order of events
ORDERED = frozenset({"first", "last", "first_valid", "last_valid", "least_by", "most_by"})

#: bits above those of single values that the digits of a sum have room for
ROOM_BITS = 40

#: words before the first field of an entry, and of a group
ENTRY_FIELDS = 2
GROUP_FIELDS = 4


@dataclass(frozen=True, slots=True)
class Field:
    """One partial aggregate of an input column (`rows` has no column).

    Some fields use other columns too (`products_f64`, `least_by`), or only count events in which
    these are not null (`valid`, `sum_f64`, ...).
    """

    kind: str
    column: str | None = None
    others: tuple[str, ...] = ()

    @classmethod
    def of_all(cls, kind: str, *columns: str) -> Field:
        """Return a field for which the order of its columns does not matter."""
        first, *rest = sorted(columns)
        return cls(kind, first, tuple(rest))

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column, *self.others)

    @property
    def op(self) -> int:
        """Return the operation that merges two values of the field; of digits, that for none."""
        return OPERATIONS[self.kind]

    @property
    def adds_doubles(self) -> bool:
        """Return whether the field is a sum of doubles, or of their products."""
        return self.op == words.ADD_FIXED


ROWS = Field("rows")


class SumExtent(NamedTuple):
    """Between which bits the values of a sum lie, and whether some are infinite or NaN."""

    low: int = 64 * double_sums.DIGITS
    high: int = 0
    has_specials: bool = False

    def joined(self, other: SumExtent) -> SumExtent:
        specials = self.has_specials or other.has_specials
        return SumExtent(min(self.low, other.low), max(self.high, other.high), specials)

    def with_room(self, copies: int) -> SumExtent:
        """Return the extent of any sum of so many values."""
        if self.low >= self.high:
            return self
        return self._replace(high=self.high + copies.bit_length())

    @property
    def digits(self) -> tuple[int, int]:
        """Return the first digit, and how many there are with one bit for the sign."""
        if self.low >= self.high:
            return 0, 0
        first = self.low >> 6
        return first, ((self.high + 1) >> 6) + 1 - first


#: where plans that have seen no values expect them: prices, amounts, measurements
TYPICAL = SumExtent(double_sums.ORIGIN - 60, double_sums.ORIGIN + 60)

#: name under which headers and snapshots have the extents of sums
EXTENTS = "extents"

#: the digits of a sum: the first, how many, and whether it has words for infinities and NaN
Span = tuple[int, int, bool]


class FieldPlaces(NamedTuple):
    """Where the words of fields lie, from the first word of the fields on."""

    #: for each sum of doubles: place, first digit, digits, and place of the specials or -1
    sums_at: Table
    #: words of all fields
    width: int
    #: the operations that merge rows, and the first word of each
    ops: Ints
    places: Ints
    #: those of them that can be taken back
    sums: tuple[Ints, Ints]
    #: words of fields into which nothing was merged
    identity: Ints


@lru_cache(maxsize=256)
def places_of(fields: tuple[Field, ...], spans: tuple[Span, ...]) -> FieldPlaces:
    """Lay out the words of fields, given the span of each sum of doubles."""
    sums_at, ops, places = [], [], []
    identity: list[int] = []
    for field in fields:
        if not field.adds_doubles:
            ops.append(field.op)
            places.append(len(identity))
            identity += [words.IDENTITY[field.op]] * words.WORDS[field.op]
    at = len(identity)
    for first, count, has_specials in spans:
        specials = at + count if has_specials else -1
        sums_at.append((at, first, count, specials))
        ops.append(words.ADD_FIXED + count)
        places.append(at)
        at += count
        if has_specials:
            ops += [words.ADD_I64] * double_sums.SPECIALS
            places += range(at, at + double_sums.SPECIALS)
            at += double_sums.SPECIALS
    all_ops, all_places = (np.array(each, dtype=np.int64) for each in (ops, places))
    adds = np.array([words.is_invertible(op) for op in ops], dtype=np.bool_)
    nothing = np.zeros(at, dtype=np.int64)
    nothing[: len(identity)] = identity
    described = np.array(sums_at, dtype=np.int64).reshape(-1, 4)
    sums = all_ops[adds], all_places[adds]
    return FieldPlaces(described, at, all_ops, all_places, sums, nothing)


@dataclass(frozen=True)
class Layout:
    """Where each field lies in entries and groups."""

    fields: tuple[Field, ...]
    #: between which bits each sum of doubles lies; empty if no value was seen
    extents: tuple[SumExtent, ...] = ()

    @classmethod
    def of(cls, fields: Iterable[Field]) -> Layout:
        """Lay out the given fields once each, the number of events first."""
        return cls(tuple(dict.fromkeys([ROWS, *fields])))

    @cached_property
    def sums(self) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if field.adds_doubles)

    @cached_property
    def fixed(self) -> tuple[Field, ...]:
        """Return the fields of fixed size, in the order of their words."""
        return tuple(field for field in self.fields if not field.adds_doubles)

    @cached_property
    def bounds(self) -> tuple[SumExtent, ...]:
        """Return the extent of each sum of doubles, also of those without a value."""
        return self.extents or (SumExtent(),) * len(self.sums)

    @cached_property
    def at(self) -> FieldPlaces:
        """Return where the words of the fields lie, from their first word on."""
        spans = tuple((*each.digits, each.has_specials) for each in self.bounds)
        return places_of(self.fields, spans)

    def widened(self, extents: Iterable[SumExtent]) -> Self:
        """Return a layout that also has room for sums of the given extents."""
        pairs = zip(self.bounds, extents, strict=True)
        wider = tuple(mine.joined(other) for mine, other in pairs)
        return self if wider == self.bounds else replace(self, extents=wider)

    def with_room(self, copies: int) -> Self:
        """Return a layout for any sums of so many rows."""
        return replace(self, extents=tuple(each.with_room(copies) for each in self.bounds))

    @property
    def typical(self) -> Self:
        """Return the layout to expect before any value was seen."""
        return self.widened((TYPICAL,) * len(self.sums))

    @property
    def ops(self) -> Ints:
        """Return the operations that merge rows."""
        return self.at.ops

    @cached_property
    def places(self) -> Ints:
        """Return the first word of each operation in an entry; fields of fixed size come first."""
        return self.at.places + ENTRY_FIELDS

    @property
    def field_words(self) -> int:
        return self.at.width

    @cached_property
    def suffix_words(self) -> int:
        return sum(words.WORDS[field.op] for field in self._suffixes)

    @cached_property
    def needs_order(self) -> bool:
        """Return whether some field needs the time and arrival of each event."""
        return any(field.kind in ORDERED for field in self.fields)

    @property
    def entry_width(self) -> int:
        return ENTRY_FIELDS + self.field_words

    @property
    def suffixes_at(self) -> int:
        """Return the first word of the suffixes in a group's row."""
        return GROUP_FIELDS + self.field_words

    @property
    def next_suffix_at(self) -> int:
        """Return the first word of the next suffixes in a group's row; 0 if it has none."""
        return 0

    @property
    def next_back_at(self) -> int:
        """Return the first word of the next backs in a group's row; 0 if it has none."""
        return 0

    @property
    def group_width(self) -> int:
        """Return the words of a group's row."""
        return self.suffixes_at + self.suffix_words

    @cached_property
    def entry_identity(self) -> Ints:
        """Return an entry into which nothing was folded."""
        return np.concatenate([np.zeros(ENTRY_FIELDS, dtype=np.int64), self.at.identity])

    @cached_property
    def group_identity(self) -> Ints:
        """Return the row of a group that was just opened."""
        suffixes = np.array(self._identities(self._suffixes), dtype=np.int64)
        return np.concatenate([np.zeros(GROUP_FIELDS, dtype=np.int64), self.at.identity, suffixes])

    @property
    def group_sums(self) -> tuple[Table, tuple[SumExtent, ...]]:
        """Return where the sums of doubles lie in a group's row, and their extents."""
        return moved_sums(self.at.sums_at, GROUP_FIELDS), self.bounds

    def place(self, field: Field) -> int:
        """Return the first word of a field of fixed size in the table of fields."""
        return int(self.at.places[self.fixed.index(field)])

    @property
    def _suffixes(self) -> list[Field]:
        return [field for field in self.fields if not words.is_invertible(field.op)]

    @staticmethod
    def _identities(fields: Iterable[Field]) -> list[int]:
        return [words.IDENTITY[field.op] for field in fields for _ in range(words.WORDS[field.op])]


def extents_of(facts: Mapping[str, Any], layout: Layout) -> tuple[SumExtent, ...]:
    """Return the extents of fields that facts about a state have recorded, or those of nothing."""
    found = tuple(SumExtent(*each) for each in facts.get(EXTENTS, ()))
    return found or (SumExtent(),) * len(layout.sums)


def moved_sums(sums_at: Table, by: int) -> Table:
    """Return where sums of doubles lie if the fields begin so many words later."""
    if not len(sums_at):
        return sums_at
    moved = sums_at.copy()
    moved[:, double_sums.PLACE] += by
    moved[:, double_sums.SPECIALS_AT] += np.where(moved[:, double_sums.SPECIALS_AT] < 0, 0, by)
    return moved


class SlidingLayout(Layout):
    """A layout whose groups also have the next front and the next back (`grid.two_stacks`)."""

    @property
    def next_suffix_at(self) -> int:
        """Return the first word of the next suffixes in a group's row."""
        return self.suffixes_at + self.suffix_words

    @property
    def next_back_at(self) -> int:
        """Return the first word of the next backs in a group's row; 0 if no field needs one."""
        return self.next_suffix_at + self.suffix_words if self.suffix_words else 0

    @property
    def group_width(self) -> int:
        return self.suffixes_at + 3 * self.suffix_words

    @cached_property
    def group_identity(self) -> Ints:
        own = Layout(self.fields, self.extents).group_identity
        nexts = 2 * self._identities(self._suffixes)
        return np.concatenate([own, np.array(nexts, dtype=np.int64)])
