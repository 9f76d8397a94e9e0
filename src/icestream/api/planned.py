"""The plan behind a result that has not been started."""

from __future__ import annotations

from icestream.api.events import Events
from icestream.api.jobs import Tuples
from icestream.api.result import Result
from icestream.api.update_result import UpdateResult
from icestream.core.errors import DefinitionError
from icestream.plan.nodes.queries import Computation


def computation(result: object) -> Computation:
    """Return the planned computation of a result of any kind.

    Raises:
        DefinitionError: if it is not a result, or cannot be a query by itself.
    """
    if isinstance(result, Result | UpdateResult | Events | Tuples):
        return result.writeStream._built.plan
    msg = f"a {type(result).__name__} is not a result of a query: it has no writeStream"
    raise DefinitionError(msg)
