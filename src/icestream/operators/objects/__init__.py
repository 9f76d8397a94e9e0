"""Window aggregates whose state is an object: exact quantiles, collections, sketches, your own."""

from __future__ import annotations

from icestream.operators.objects.operator import ObjectOperator
from icestream.operators.objects.spec import ObjectSpec

__all__ = ["ObjectOperator", "ObjectSpec"]
