"""Windows as updates: their size and slide, which one counts, and what it costs.

Idea: LAZY takes the newest full window as the newest update, EAGER the newest window that has
started. The cost of a window is that of its tuples, once for every window that is open at the same
time: between `tuple_cost * size` (no other one) and the sum over the windows that overlap it.

Invariants:
1. The cost of windows is between the bounds, and both bounds are reached
   (`test_oracle_cost_of_windows_lies_between_its_bounds`).

References: C_W of section 6.1.2 of the source named in `docs/papers.md`; its printed upper bound
has one more term, which is negative unless the slide divides the size, and is then below C_W.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from icestream.core.errors import DefinitionError

Semantics = Literal["lazy", "eager"]


@dataclass(frozen=True, slots=True)
class UpdateWindows:
    """Windows of `size`, one every `slide`, in units of the time they are over."""

    size: int
    slide: int
    semantics: Semantics = "lazy"

    def __post_init__(self) -> None:
        if self.size < 1 or self.slide < 1:
            msg = f"size and slide must be >= 1; got {self.size} and {self.slide}"
            raise DefinitionError(msg)
        if self.slide > self.size:
            msg = (
                f"a slide of {self.slide} beyond the size of {self.size} leaves gaps between "
                "windows; the slide must be <= the size"
            )
            raise DefinitionError(msg)
        if self.semantics not in get_args(Semantics):
            msg = f"unknown semantics {self.semantics!r}; choose 'lazy' or 'eager'"
            raise DefinitionError(msg)

    @property
    def eager(self) -> bool:
        """Whether a window is committed as soon as it starts."""
        return self.semantics == "eager"

    @property
    def overlap(self) -> int:
        """Maximum number of windows open at once."""
        return -(-self.size // self.slide)

    @property
    def most_tuples(self) -> int:
        """Maximum tuples of the newest window of a key, with all that is stored for it."""
        return self.size + self.slide - 1

    def cost_bounds(self, tuple_cost: float) -> tuple[float, float]:
        """Return the least and the greatest cost of a window, in closed form."""
        overlap = self.overlap
        most = tuple_cost * overlap * (self.size - (overlap - 1) * self.slide / 2)
        return tuple_cost * self.size, most
