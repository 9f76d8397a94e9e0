"""The layout of tuples, and of the groups whose windows they move.

Idea: a tuple is the entry of a single event followed by its time, so code that merges entries also
merges tuples. Frames over the same events share tuples, which have the fields of all frames, and
the rows of groups: identity and key once, then the words of each frame (`kernels.frames.moving`).

    row of a group   id | last changed | fields suffixes extras | fields suffixes extras | ...
                                         first frame              second frame

Invariant: no two frames share a word of a row (`test_frames_have_words_of_their_own_in_a_row`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from icestream.core.arrays import Ints
from icestream.kernels.frames.moving import COUNT, DUE, EXTRAS, MARK, NEVER
from icestream.operators.folding.fields import GROUP_FIELDS, Field, Layout

_EXTRA_IDENTITY = {COUNT: 0, MARK: -1, DUE: NEVER}


class TupleLayout(Layout):
    """Where each field lies in tuples."""

    @property
    def tuple_width(self) -> int:
        """Return the words of a tuple."""
        return self.entry_width + 1

    @property
    def tuple_bytes(self) -> int:
        """Return the bytes of a tuple."""
        return 8 * self.tuple_width


@dataclass(frozen=True)
class FrameLayout(Layout):
    """Where the fields of one frame lie in the rows of groups, and in tuples."""

    #: fields of the tuples, which may serve other frames too
    stored: tuple[Field, ...] = ()
    #: first word of the frame in a group's row
    row_at: int = GROUP_FIELDS

    @cached_property
    def in_tuples(self) -> Ints:
        """Return the first word of each field in a tuple."""
        if not self.stored:
            return self.places
        found = dict(zip(self.stored, Layout(self.stored).places.tolist(), strict=True))
        return np.array([found[field] for field in self.fields], dtype=np.int64)

    @cached_property
    def in_rows(self) -> Ints:
        """Return the first word of each field in a group's row."""
        shifted: Ints = self.places - self.places[0] + self.row_at
        return shifted

    @property
    def suffixes_at(self) -> int:
        """Return the first word of the suffixes in a group's row."""
        return self.row_at + self.field_words

    @property
    def extras_at(self) -> int:
        """Return the first word after the suffixes in a group's row."""
        return self.suffixes_at + self.suffix_words

    @property
    def group_width(self) -> int:
        """Return the words of a group's row up to the end of this frame."""
        return self.extras_at + EXTRAS

    @cached_property
    def group_identity(self) -> Ints:
        """Return the row of a group that was just opened, up to the end of this frame."""
        own = Layout(self.fields).group_identity[GROUP_FIELDS:].tolist()
        extras = [_EXTRA_IDENTITY[word] for word in range(EXTRAS)]
        return np.array([0] * self.row_at + own + extras, dtype=np.int64)


@dataclass(frozen=True)
class SharedLayout(TupleLayout):
    """Where the fields of several frames lie in the tuples and rows that they share."""

    frames: tuple[FrameLayout, ...] = ()

    @classmethod
    def of_frames(cls, frames: Sequence[Layout]) -> SharedLayout:
        """Lay out frames one after the other, given the fields of each."""
        stored = Layout.of(field for frame in frames for field in frame.fields).fields
        placed: list[FrameLayout] = []
        at = GROUP_FIELDS
        for frame in frames:
            placed.append(FrameLayout(frame.fields, stored, at))
            at = placed[-1].group_width
        return cls(stored, tuple(placed))

    @property
    def group_width(self) -> int:
        """Return the words of a group's row."""
        return self.frames[-1].group_width

    @cached_property
    def group_identity(self) -> Ints:
        """Return the row of a group that was just opened."""
        own = [frame.group_identity[frame.row_at :] for frame in self.frames]
        return np.concatenate([np.zeros(GROUP_FIELDS, dtype=np.int64), *own])
