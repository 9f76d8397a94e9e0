"""Windows that move with events: frames, and the operator that computes them."""

from icestream.operators.ordered.frame import Frame, OrderedSpec, RowsSlide
from icestream.operators.ordered.operator import OrderedOperator

__all__ = ["Frame", "OrderedOperator", "OrderedSpec", "RowsSlide"]
