"""What windows are updates: their size and slide, when one counts, and what it costs.

Idea: LAZY takes the newest window that is full for the newest update, EAGER the newest that
started. The cost of a window is that of its tuples, once for every window that is open beside it:
between `tuple_cost * size` (no other one) and the sum over the windows that overlap it.

Invariants:
1. What windows cost lies between the bounds, and both are met
   (`test_oracle_cost_of_windows_lies_between_its_bounds`).

References: C_W of section 6.1.2 of the source named in `docs/papers.md`; its printed upper bound
adds one term more, negative unless the slide divides the size, and then falls below C_W.
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
        """Check the lengths."""
        if self.size < 1 or self.slide < 1:
            msg = f"size and slide are 1 or more; got {self.size} and {self.slide}"
            raise DefinitionError(msg)
        if self.slide > self.size:
            msg = (
                f"a slide of {self.slide} beyond the size of {self.size} leaves time between "
                "windows; make the slide the size at most"
            )
            raise DefinitionError(msg)
        if self.semantics not in get_args(Semantics):
            msg = f"no windows are called {self.semantics!r}; choose 'lazy' or 'eager'"
            raise DefinitionError(msg)

    @property
    def eager(self) -> bool:
        """Whether a window is committed to as soon as it started."""
        return self.semantics == "eager"

    @property
    def overlap(self) -> int:
        """Windows that are open at once, at most."""
        return -(-self.size // self.slide)

    @property
    def most_tuples(self) -> int:
        """Tuples that the newest window of a key takes at most, with all that is kept for it."""
        return self.size + self.slide - 1

    def cost_bounds(self, tuple_cost: float) -> tuple[float, float]:
        """Return the least and the most that a window can cost, in closed form."""
        overlap = self.overlap
        most = tuple_cost * overlap * (self.size - (overlap - 1) * self.slide / 2)
        return tuple_cost * self.size, most
