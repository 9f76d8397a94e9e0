"""Merged fields whose sums of doubles are exact: results are rounded once.

Idea: a result is the double nearest to the exact sum, quotient or spread (`kernels.fixed_point`).
Infinities and NaN were counted apart from the sum; where there are any, they determine the result.

Invariant: results equal those of fractions, rounded (`test_oracle_exact_fields_are_rounded_once`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from icestream.core.arrays import Floats, Ints, Mask
from icestream.kernels import fixed_point as fixed
from icestream.operators.aggregates.protocol import MergedFields
from icestream.operators.folding.exact_rows import RowShape
from icestream.operators.folding.fields import Field


@dataclass(frozen=True, slots=True)
class ExactFields(MergedFields):
    """A table of merged fields with exact sums."""

    shape: RowShape

    def sums(self, field: Field) -> Floats:
        """Return the doubles nearest to sums."""
        out = np.empty(len(self.table))
        fixed.nearest_sums(self.table, self._of(field), out)
        return self._with_specials(out, field)

    def means(self, field: Field, counts: Ints) -> Floats:
        """Return the doubles nearest to sums divided by counts, which are positive."""
        out = np.empty(len(self.table))
        fixed.nearest_means(self.table, self._of(field), counts, out)
        return self._with_specials(out, field)

    def ratios(self, field: Field, by: Field) -> Floats:
        """Return the doubles nearest to the quotients of sums; NaN where the divisor is zero."""
        out = np.empty(len(self.table))
        fixed.nearest_ratios(self.table, self._of(field), self._of(by), out)
        special = self._special(field) | self._special(by)
        if special.any():
            out = np.where(special, self.sums(field) / self.sums(by), out)
        return out

    def spreads(self, products: Field, x: Field, y: Field, counts: Ints, divisors: Ints) -> Floats:
        """Return the doubles nearest to (sum of products - product of sums / count) / divisor."""
        out = np.empty(len(self.table))
        of, x_at, y_at = (self._of(each) for each in (products, x, y))
        fixed.nearest_spreads(self.table, of, x_at, y_at, counts, divisors, out)
        out[self._special(products) | self._special(x) | self._special(y)] = np.nan
        return out

    def _of(self, field: Field) -> Ints:
        described: Ints = self.shape.at.sums_at[self.shape.of_doubles.index(field)]
        return described

    def _specials(self, field: Field) -> Ints:
        """Return the numbers of NaN, infinities and minus infinities in each sum."""
        at = int(self._of(field)[fixed.SPECIALS_AT])
        if at < 0:
            return np.zeros((len(self.table), fixed.SPECIALS), dtype=np.int64)
        return self.table[:, at : at + fixed.SPECIALS]

    def _special(self, field: Field) -> Mask:
        found: Mask = (self._specials(field) != 0).any(axis=1)
        return found

    def _with_specials(self, finite: Floats, field: Field) -> Floats:
        undefined, above, below = self._specials(field).T != 0
        out = np.where(above, np.inf, np.where(below, -np.inf, finite))
        return np.where(undefined | (above & below), np.nan, out)
