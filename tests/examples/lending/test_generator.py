from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from examples.lending.generator import ARROW_SCHEMA, Loans
from icestream.core.errors import DefinitionError


def test_oracle_rows_do_not_depend_on_the_pieces() -> None:
    loans = Loans(rate=7, seed=3)
    pieces = [loans.table(first, 50) for first in range(0, 200, 50)]
    assert pa.concat_tables(pieces).equals(loans.table(0, 200).combine_chunks())
    assert pieces[0].schema.equals(ARROW_SCHEMA)
    assert not Loans(rate=7, seed=4).table(0, 50).equals(pieces[0])


def test_bounded_disorder_stays_below_its_bound() -> None:
    loans = Loans(rate=20)
    times = loans.table(0, 5000)["date"].cast(pa.int64()).to_numpy()
    behind = np.maximum.accumulate(times) - times
    assert 0 < behind.max() < loans.disorder


def test_a_boom_brings_most_loans_to_one_area() -> None:
    areas = Loans(boom=1000).table(0, 3000)["area"].to_pylist()
    assert areas[:1000] == Loans().table(0, 1000)["area"].to_pylist()
    _, most = Counter(areas[1000:]).most_common(1)[0]
    assert 0.6 < most / 2000 < 0.8


def test_a_rate_below_one_is_refused() -> None:
    with pytest.raises(DefinitionError, match="at least 1 loan"):
        Loans(rate=0)
