from __future__ import annotations

import math

import pytest

from icestream.api.parameters import fractions, quantile_size, registers
from icestream.core.errors import DefinitionError


@pytest.mark.parametrize("rsd", [0.09, 0.05, 0.02, 0.01, 0.0008])
def test_sketches_are_as_large_as_the_asked_error_needs(rsd: float) -> None:
    size = registers(rsd)
    assert 1.04 / math.sqrt(2**size) <= rsd
    assert 7 <= size <= 21
    accuracy = round(1 / rsd)
    assert 2.296 / quantile_size(accuracy) ** 0.9021 <= 1 / accuracy


def test_the_best_sketch_of_quantiles_is_nearly_as_good_as_sparks() -> None:
    assert quantile_size(10_000) == 65535
    assert 2.296 / 65535**0.9021 < 1.05e-4


@pytest.mark.parametrize("wanted", [1.5, -0.1, "half", [0.5, 2.0], None])
def test_what_is_no_fraction_is_refused(wanted: object) -> None:
    with pytest.raises(DefinitionError, match=r"percentile takes fractions .* Write 0\.95"):
        fractions("percentile", wanted)  # type: ignore[arg-type]


def test_one_fraction_stays_one_and_several_become_a_tuple() -> None:
    assert fractions("percentile", 1) == 1.0
    assert fractions("percentile", [0.5, 1]) == (0.5, 1.0)


@pytest.mark.parametrize("accuracy", [0, 10_001, 0.5])
def test_an_accuracy_no_sketch_has_is_refused(accuracy: object) -> None:
    with pytest.raises(DefinitionError, match=r"from 1 to 10000.* Use ice.percentile"):
        quantile_size(accuracy)


@pytest.mark.parametrize("rsd", [0.0, 0.0001, 0.5])
def test_a_deviation_no_sketch_has_is_refused(rsd: float) -> None:
    with pytest.raises(DefinitionError, match=r"between .* Use ice.count_distinct"):
        registers(rsd)
