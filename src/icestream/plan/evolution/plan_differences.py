"""What differs between the plan that a checkpoint has and the plan of a query, for people.

Idea: both are descriptions in JSON. Their parts are compared one by one, those of views and
components under names of their own, so that a message shows only what was changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icestream.core.errors import CheckpointError
from icestream.plan.nodes.queries import mode_of

#: parts of a description that are compared in another way than the others
_APART = ("views", "late", "components")
#: lists up to this length are shown whole where they differ
_FEW = 2


def differences(kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return what differs between the plan that a checkpoint has and another one."""
    theirs, ours = _flat(kept), _flat(wanted)
    pairs = {name: (theirs.get(name), ours.get(name)) for name in {**theirs, **ours}}
    return [
        f"{name}: the checkpoint has {_alone(a, b)!r}, the query has {_alone(b, a)!r}"
        for name, (a, b) in pairs.items()
        if a != b
    ]


def check_same_plan(root: str, kept: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another query's plan, with every difference."""
    found = differences(kept, wanted)
    if found:
        msg = (
            f"the checkpoint at {root} belongs to another query. "
            + "; ".join(found)
            + ". Give this query its own checkpoint location, or undo the change"
        )
        raise CheckpointError(msg)


def _alone(value: Any, other: Any) -> Any:
    """Return what of a long list is not in another one; anything else as it is."""
    if isinstance(value, list) and isinstance(other, list) and len(value) > _FEW:
        return [each for each in value if each not in other] or value
    return value


def _flat(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with the parts of its views as separate entries."""
    views = described["views"]
    # what happens to late events is no part of the state: it may change at every start
    facts = {name: value for name, value in described.items() if name not in _APART}
    for number, steps in enumerate(described.get("components", ())):
        facts[f"component {number}"] = steps
    for number, view in enumerate(views):
        prefix = f"query {number}, " if len(views) > 1 else ""
        facts |= {f"{prefix}{name}": value for name, value in view.items()}
        facts |= {f"{prefix}mode": mode_of(view)}
    return facts
