"""The layout of tuples, and of the groups whose windows they move.

Idea: a tuple is the entry of a single event followed by its time, so code that merges entries also
merges tuples. Of sums of doubles it has the doubles that the event adds. Frames over the same
events share tuples, which have the fields of all frames, and the rows of groups: identity and key
once, then the words of each frame (`kernels.frames.moving`).

    tuple            id | fields of fixed size | doubles | time
    row of a group   id | last changed | fields suffixes extras | fields suffixes extras | ...
                                         first frame              second frame

Invariant: no two frames share a word of a row (`test_frames_have_words_of_their_own_in_a_row`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from icestream.core.arrays import Ints, Table
from icestream.kernels import double_sums
from icestream.kernels.field_words import WORDS
from icestream.kernels.fold import ALL_VALID
from icestream.kernels.frames.moving import COUNT, DUE, EXTRAS, MARK, NEVER
from icestream.operators.folding.fields import (
    ENTRY_FIELDS,
    GROUP_FIELDS,
    ROOM_BITS,
    Field,
    Layout,
    SumExtent,
    moved_sums,
)

_EXTRA_IDENTITY = {COUNT: 0, MARK: -1, DUE: NEVER}
_RAW_KINDS = {
    "sum_f64": double_sums.RAW_DOUBLE,
    "squares_f64": double_sums.RAW_SQUARE,
    "products_f64": double_sums.RAW_PRODUCT,
}


class TupleLayout(Layout):
    """Where each field lies in tuples."""

    @cached_property
    def in_tuple(self) -> dict[Field, int]:
        """Return the first word of each field in a tuple."""
        found, at = {}, ENTRY_FIELDS
        for field in (*self.fixed, *self.sums):
            found[field] = at
            at += _tuple_words(field)
        return found

    @cached_property
    def tuple_width(self) -> int:
        return ENTRY_FIELDS + sum(map(_tuple_words, self.fields)) + 1

    @property
    def tuple_bytes(self) -> int:
        return 8 * self.tuple_width

    def extents_in(self, tuples: Table) -> list[SumExtent]:
        """Return the extents of the sums of tuples, with room to add many of them up."""
        found = []
        for field in self.sums:
            at = self.in_tuple[field]
            x = np.ascontiguousarray(tuples[:, at])
            if field.kind == "sum_f64":
                low, high, specials = double_sums.sum_extent(x, ALL_VALID)
            else:
                y = x if field.kind == "squares_f64" else np.ascontiguousarray(tuples[:, at + 1])
                low, high, specials = double_sums.product_extent(x, y, ALL_VALID)
            extent = SumExtent(int(low), int(high), bool(specials))
            found.append(extent.with_room((1 << ROOM_BITS) - 1))
        return found


@dataclass(frozen=True)
class FrameLayout(Layout):
    """Where the fields of one frame lie in the rows of groups, and in tuples."""

    #: fields of the tuples, which may serve other frames too
    stored: tuple[Field, ...] = ()
    #: first word of the frame in a group's row
    row_at: int = GROUP_FIELDS
    #: words behind the suffixes
    extra_words: int = EXTRAS

    @cached_property
    def ops(self) -> Ints:
        """Return the operations that merge tuples into rows."""
        raw = [
            double_sums.raw_operation(_RAW_KINDS[field.kind], of)
            for field, of in zip(self.sums, self.at.sums_at, strict=True)
        ]
        return np.array([*(field.op for field in self.fixed), *raw], dtype=np.int64)

    @cached_property
    def in_tuples(self) -> Ints:
        """Return the first word of each operation in a tuple."""
        places = TupleLayout(self.stored or self.fields).in_tuple
        return np.array([places[field] for field in (*self.fixed, *self.sums)], dtype=np.int64)

    @cached_property
    def in_rings(self) -> Ints:
        """Return the first word of each operation in a ring's row."""
        sizes = [_tuple_words(field) for field in (*self.fixed, *self.sums)]
        return np.cumsum([0, *sizes[:-1]]).astype(np.int64)

    @property
    def ring_width(self) -> int:
        return sum(map(_tuple_words, self.fields)) + self.suffix_words

    @cached_property
    def in_rows(self) -> Ints:
        """Return the first word of each operation in a group's row."""
        places = self.at.places[: len(self.fixed)], self.at.sums_at[:, double_sums.PLACE]
        shifted: Ints = np.concatenate(places) + self.row_at
        return shifted

    @property
    def suffixes_at(self) -> int:
        return self.row_at + self.field_words

    @property
    def extras_at(self) -> int:
        """Return the first word after the suffixes in a group's row."""
        return self.suffixes_at + self.suffix_words

    @property
    def group_width(self) -> int:
        """Return the words of a group's row up to the end of this frame."""
        return self.extras_at + self.extra_words

    @cached_property
    def group_identity(self) -> Ints:
        """Return the row of a group that was just opened, up to the end of this frame."""
        own = Layout(self.fields, self.extents).group_identity[GROUP_FIELDS:].tolist()
        extras = [_EXTRA_IDENTITY[word] for word in range(self.extra_words)]
        return np.array([0] * self.row_at + own + extras, dtype=np.int64)


@dataclass(frozen=True)
class SharedLayout(TupleLayout):
    """Where the fields of several frames lie in the tuples and rows that they share."""

    frames: tuple[FrameLayout, ...] = ()

    @classmethod
    def of_frames(
        cls, frames: Sequence[Layout], extra_words: Sequence[int] | None = None
    ) -> SharedLayout:
        """Lay out frames one after the other, given the fields and extra words of each."""
        stored = Layout.of(field for frame in frames for field in frame.fields).fields
        extras = extra_words or [EXTRAS] * len(frames)
        return cls(stored)._placed([frame.fields for frame in frames], extras)

    @property
    def extra_words(self) -> list[int]:
        """Return the words behind the suffixes of each frame."""
        return [frame.extra_words for frame in self.frames]

    def widened(self, extents: Iterable[SumExtent]) -> Self:
        fields = [frame.fields for frame in self.frames]
        return super().widened(extents)._placed(fields, self.extra_words)

    def _placed(self, frames: Sequence[tuple[Field, ...]], extra_words: Sequence[int]) -> Self:
        bounds = dict(zip(self.sums, self.bounds, strict=True))
        placed: list[FrameLayout] = []
        at = GROUP_FIELDS
        for fields, extras in zip(frames, extra_words, strict=True):
            extents = tuple(bounds[field] for field in fields if field.adds_doubles)
            placed.append(FrameLayout(fields, extents, self.fields, at, extras))
            at = placed[-1].group_width
        return replace(self, frames=tuple(placed))

    @property
    def group_sums(self) -> tuple[Table, tuple[SumExtent, ...]]:
        sums = [moved_sums(frame.at.sums_at, frame.row_at) for frame in self.frames]
        return np.concatenate(sums), tuple(each for frame in self.frames for each in frame.bounds)

    @property
    def group_width(self) -> int:
        return self.frames[-1].group_width

    @cached_property
    def group_identity(self) -> Ints:
        own = [frame.group_identity[frame.row_at :] for frame in self.frames]
        return np.concatenate([np.zeros(GROUP_FIELDS, dtype=np.int64), *own])


def _tuple_words(field: Field) -> int:
    """Return the words of a field in a tuple."""
    if field.adds_doubles:
        return 2 if field.kind == "products_f64" else 1
    return WORDS[field.op]
