"""The plan behind a result that has not been started."""

from __future__ import annotations

from icestream.api.events import Events
from icestream.api.jobs import Tuples
from icestream.api.result import Result
from icestream.api.update_result import UpdateResult
from icestream.core.errors import DefinitionError
from icestream.plan.nodes.queries import Computation


def computation(result: object) -> Computation:
    """Return what a result of any kind computes.

    Raises:
        DefinitionError: where it is no result, or no query can be made of it alone.
    """
    if isinstance(result, Result | UpdateResult | Events | Tuples):
        return result.writeStream._built.plan
    msg = f"a {type(result).__name__} is no result of a query: give what has a writeStream"
    raise DefinitionError(msg)
