"""The layout of groups whose windows move with events, and of the tuples that move them.

Idea: a tuple is the entry of a single event with its time behind it, so that what merges entries
merges tuples. A group's row has, behind its fronts, the words of `kernels.ordered`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from icestream.kernels.windows.ordered import COUNT, DUE, EXTRAS, MARK, NEVER
from icestream.operators.fields import Layout

_EXTRA_IDENTITY = {COUNT: 0, MARK: -1, DUE: NEVER}


class FrameLayout(Layout):
    """Where each field lies in tuples and groups of a frame."""

    @property
    def tuple_width(self) -> int:
        """Return the words of a tuple."""
        return self.entry_width + 1

    @property
    def tuple_bytes(self) -> int:
        """Return the bytes of a tuple."""
        return 8 * self.tuple_width

    @property
    def extras_at(self) -> int:
        """Return the first word behind the fronts in a group's row."""
        return self.fronts_at + self.front_words

    @property
    def group_width(self) -> int:
        """Return the words of a group's row."""
        return self.extras_at + EXTRAS

    @cached_property
    def group_identity(self) -> npt.NDArray[np.int64]:
        """Return the row of a group that was just opened."""
        extras = [_EXTRA_IDENTITY[word] for word in range(EXTRAS)]
        before = Layout(self.fields).group_identity
        return np.concatenate([before, np.array(extras, dtype=np.int64)])
