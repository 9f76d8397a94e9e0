from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icestream.kernels.queue import order as k


@given(gap=st.floats(0, 2.0**70), more=st.floats(1, 8), weight=st.floats(2.0**-20, 2.0**20))
def test_classes_are_in_the_order_of_gaps_and_of_weights(
    gap: float, more: float, weight: float
) -> None:
    number = k.class_of(gap, weight)
    assert 0 <= number < k.CLASSES
    assert number <= k.class_of(gap * more, weight)
    assert number <= k.class_of(gap, weight * more)
    assert number % k.GAPS == k.class_of(gap, 1.0) % k.GAPS


def test_a_class_spans_a_quarter_of_an_octave() -> None:
    edges = [octave * (1 + part / 4) for octave in (1, 2, 4, 1024) for part in range(4)]
    numbers = [k.class_of(edge, 1.0) % k.GAPS for edge in edges]
    assert numbers == [*range(1, 13), *range(41, 45)]
