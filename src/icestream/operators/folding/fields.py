"""Fields: the partial aggregates that entries, panes and groups are made of.

Idea: an aggregate function is a few fields plus a way to compute its answer from them. Functions
over one column share fields (`sum(x)` and `avg(x)` share one sum), so a row holds each fact once.

Layout of an entry: id_high, id_low, then the fields; the first field is always the number of
events. Layout of a group: id_high, id_low, last pane, whether it changed, the fields, then a front
for each field that has no inverse; for sliding windows also the next front and the next back of
each of them.

Invariant: no two fields share a word (`test_no_two_fields_share_a_word`,
`test_rows_of_sliding_windows_have_the_next_suffix_and_back_behind`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from icestream.kernels import field_words as words

#: how each kind of field is merged
OPERATIONS = {
    "rows": words.ADD_I64,
    "valid": words.ADD_I64,
    "sum_i64": words.ADD_I64,
    "sum_i128": words.ADD_I128,
    "sum_f64": words.ADD_DD,
    "squares_f64": words.ADD_DD,
    "products_f64": words.ADD_DD,
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
        """Return all columns."""
        return () if self.column is None else (self.column, *self.others)

    @property
    def op(self) -> int:
        """Return the operation that merges two values of the field."""
        return OPERATIONS[self.kind]


ROWS = Field("rows")


@dataclass(frozen=True)
class Layout:
    """Where each field lies in entries and groups."""

    fields: tuple[Field, ...]

    @classmethod
    def of(cls, fields: Iterable[Field]) -> Layout:
        """Lay out the given fields once each, the number of events first."""
        return cls(tuple(dict.fromkeys([ROWS, *fields])))

    @cached_property
    def ops(self) -> npt.NDArray[np.int64]:
        """Return the operation of each field."""
        return np.array([field.op for field in self.fields], dtype=np.int64)

    @cached_property
    def places(self) -> npt.NDArray[np.int64]:
        """Return the first word of each field in an entry."""
        sizes = [words.WORDS[field.op] for field in self.fields]
        return np.cumsum([ENTRY_FIELDS, *sizes[:-1]]).astype(np.int64)

    @cached_property
    def field_words(self) -> int:
        """Return the words of all fields together."""
        return sum(words.WORDS[field.op] for field in self.fields)

    @cached_property
    def suffix_words(self) -> int:
        """Return the words of the suffixes."""
        return sum(words.WORDS[field.op] for field in self._suffixes)

    @cached_property
    def needs_order(self) -> bool:
        """Return whether some field needs the time and arrival of each event."""
        return any(field.kind in ORDERED for field in self.fields)

    @property
    def entry_width(self) -> int:
        """Return the words of an entry."""
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
    def entry_identity(self) -> npt.NDArray[np.int64]:
        """Return an entry into which nothing was folded."""
        return np.array([0] * ENTRY_FIELDS + self._identities(self.fields), dtype=np.int64)

    @cached_property
    def group_identity(self) -> npt.NDArray[np.int64]:
        """Return the row of a group that was just opened."""
        identities = self._identities(self.fields) + self._identities(self._suffixes)
        return np.array([0] * GROUP_FIELDS + identities, dtype=np.int64)

    def place(self, field: Field) -> int:
        """Return the first word of a field in the table of fields (without the identity)."""
        return int(self.places[self.fields.index(field)]) - ENTRY_FIELDS

    @property
    def _suffixes(self) -> list[Field]:
        """Return the fields that have no inverse."""
        return [field for field in self.fields if field.op not in words.INVERTIBLE]

    @staticmethod
    def _identities(fields: Iterable[Field]) -> list[int]:
        return [words.IDENTITY[field.op] for field in fields for _ in range(words.WORDS[field.op])]


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
        """Return the words of a group's row."""
        return self.suffixes_at + 3 * self.suffix_words

    @cached_property
    def group_identity(self) -> npt.NDArray[np.int64]:
        """Return the row of a group that was just opened."""
        nexts = 2 * self._identities(self._suffixes)
        return np.concatenate([Layout(self.fields).group_identity, np.array(nexts, dtype=np.int64)])
