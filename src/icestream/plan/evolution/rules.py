"""What of a query may change while its checkpoint goes on, and what is refused by name.

Idea: state belongs to operators, not to the text of a query. Two queries are compared by what they
store: keys, windows, fields of aggregates, tables by group. What stores nothing (filters and
expressions on the way from the sources, sinks, slack, names of columns) may always change; the rows
from before stay as they were computed. Windows on a grid, sessions and tables by key also go on
with other aggregates: a field that the state has is carried over, a new one begins empty.
Everything else would answer wrongly, and is refused with the reason.

Invariants:
1. Whatever is accepted goes on as a query that had applied both definitions to their own events
   (`test_oracle_windows_go_on_with_other_aggregates`, `test_oracle_a_filter_changes_at_a_restart`).
2. Whatever changes the identity of groups or the bounds of windows is refused
   (`test_what_would_answer_wrongly_is_refused_by_name`).

References: `docs/decisions/0070-state-belongs-to-operators-not-to-the-text-of-a-query.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from icestream.core.errors import CheckpointError
from icestream.plan.computation import Computation
from icestream.plan.evolution.dataflows import (
    Flow,
    OtherAggregates,
    other_aggregates,
    refused_in_dataflow,
    refused_words,
)
from icestream.plan.evolution.windows import WindowChange
from icestream.plan.nodes.queries import Plan, mode_of
from icestream.plan.state_schema import (
    DataflowSchema,
    NoSchema,
    UpdateSchema,
    read,
    state_schema_of,
    written,
)

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


@dataclass(frozen=True)
class Evolution:
    """How a query differs from the one whose state a checkpoint has."""

    #: what the checkpoint and the query have, for people
    differences: tuple[str, ...]
    #: the plans of windows before and after, if stored state has to be written anew
    windows: tuple[Plan, Plan] | None = None
    #: the components of a dataflow before and after whose aggregates have to be written anew
    aggregates: tuple[OtherAggregates, ...] = ()


def evolution(
    root: str,
    stored: Mapping[str, Any],
    schema: Mapping[str, Any] | None,
    plan: Computation,
) -> Evolution | None:
    """Apply the rules to a query and the stored plan; None if equal, CheckpointError if refused.

    Args:
        root: the checkpoint, for the message.
        stored: the description of the plan that the checkpoint has.
        schema: its state schema.
        plan: the plan of the query that starts.
    """
    described = plan.as_stored(stored).describe()
    found = differences(stored, described)
    if not found:
        return None
    before, after = None if schema is None else read(schema), read(written(state_schema_of(plan)))
    windows: tuple[Plan, Plan] | None = None
    aggregates: tuple[OtherAggregates, ...] = ()
    match before, after:
        case Plan(), Plan():
            change = WindowChange(before, replace(after, key_groups=before.key_groups))
            refused = list(change.refused())
            windows = (change.before, change.after) if not refused and change.rewrites else None
        case DataflowSchema(), DataflowSchema():
            aggregates = tuple(other_aggregates(before, after, plan))
            changed = frozenset(number for number, _, _ in aggregates)
            flows = Flow(stored, before, changed), Flow(described, after, changed)
            refused = list(refused_in_dataflow(*flows))
            refused += [why for _, *pair in aggregates for why in refused_words(*pair)]
        case UpdateSchema(), UpdateSchema():
            alike = replace(before, text="") == replace(after, text="")
            refused = [] if alike else ["the values that wait have other columns, keys or windows"]
        case (None | NoSchema(), _) | (_, NoSchema()):
            refused = ["without a state schema nothing but sinks and late events may change"]
        case _:
            refused = ["queries of another kind have other state"]
    modes = [list(map(mode_of, each["views"])) for each in (stored, described)]
    if refused and "update" in modes[1] and modes[0] != modes[1]:
        msg = (
            f"the checkpoint at {root} does not go on in output mode 'update', which has Spark's "
            "meaning now: write outputMode('changes') for what 'update' meant in earlier releases, "
            "or the mode that it has, or give this query its own checkpoint location"
        )
        raise CheckpointError(msg)
    if refused:
        msg = (
            f"the checkpoint at {root} belongs to another query. {'; '.join(found)}. Its state "
            f"cannot go on: {'; '.join(refused)}. Give this query its own checkpoint location "
            "(writer.bootstrap fills it from history), or undo the change"
        )
        raise CheckpointError(msg)
    return Evolution(tuple(found), windows, aggregates)
