"""SQL expressions over Arrow batches, with Spark's meaning and without the JVM."""

from icestream.operators.expressions.compile import Bound, Expression, Predicate, Projection, parse

__all__ = ["Bound", "Expression", "Predicate", "Projection", "parse"]
