from __future__ import annotations

import math

import datasketches as ds
import pytest

from icestream.api.parameters import fractions, quantile_size, registers
from icestream.core.errors import DefinitionError
from icestream.operators.object_aggregates.sketches import LEAST_K, LEAST_LG_K, MOST_K, MOST_LG_K


@pytest.mark.parametrize("rsd", [0.09, 0.05, 0.02, 0.01, 0.0008])
def test_sketches_are_as_large_as_the_asked_error_needs(rsd: float) -> None:
    size = registers(rsd)
    assert 1.04 / math.sqrt(2**size) <= rsd
    assert LEAST_LG_K <= size <= MOST_LG_K


@pytest.mark.parametrize("accuracy", [1, 10, 100, 10_000, 20_000])
def test_sketches_of_quantiles_are_as_large_as_the_library_says(accuracy: int) -> None:
    size = quantile_size(accuracy)
    assert LEAST_K <= size <= MOST_K
    error = ds.kll_doubles_sketch(size).normalized_rank_error(False)
    assert error <= 1.001 / accuracy
    assert accuracy < 10 or error > 0.95 / accuracy


@pytest.mark.parametrize("wanted", [1.5, -0.1, "half", [0.5, 2.0], None])
def test_what_is_no_fraction_is_refused(wanted: object) -> None:
    with pytest.raises(DefinitionError, match=r"percentile takes fractions .* Write 0\.95"):
        fractions("percentile", wanted)  # type: ignore[arg-type]


def test_one_fraction_stays_one_and_several_become_a_tuple() -> None:
    assert fractions("percentile", 1) == 1.0
    assert fractions("percentile", [0.5, 1]) == (0.5, 1.0)


@pytest.mark.parametrize("accuracy", [0, 20_001, 0.5])
def test_an_accuracy_no_sketch_has_is_refused(accuracy: object) -> None:
    with pytest.raises(DefinitionError, match=r"from 1 to 20000.* Use ice.percentile"):
        quantile_size(accuracy)


@pytest.mark.parametrize("rsd", [0.0, 0.0001, 0.5])
def test_a_deviation_no_sketch_has_is_refused(rsd: float) -> None:
    with pytest.raises(DefinitionError, match=r"between .* Use ice.count_distinct"):
        registers(rsd)
