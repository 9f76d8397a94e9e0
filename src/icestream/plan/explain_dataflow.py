"""Dataflows in words: components, what enters and leaves them, and the groups they keep."""

from __future__ import annotations

from icestream.plan.dataflow import Dataflow, described


def explained_dataflow(plan: Dataflow) -> str:
    """Return a dataflow as text for people."""
    lines = [f"{'source':>16}  {_source(plan, number)}" for number in range(len(plan.sources))]
    for number, steps in enumerate(plan.components):
        lines.append("")
        lines.append(f"{'component':>16}  {number}")
        for edge in plan.edges:
            if edge.target == number:
                origin = (
                    f"source {edge.source}" if edge.origin is None else f"component {edge.origin}"
                )
                after = f" after {', '.join(edge.texts)}" if edge.texts else ""
                lines.append(f"{'enters':>16}  {origin}, by {', '.join(edge.keys)}{after}")
        lines += [f"{place:>16}  {described(step)}" for place, step in enumerate(steps)]
        for grouping, synopses in enumerate(plan.specs[number].groupings):
            if synopses:
                names = ", ".join(each.name for each in synopses)
                lines.append(f"{'groups':>16}  grouping {grouping} keeps {names}")
    return "\n".join(lines)


def _source(plan: Dataflow, number: int) -> str:
    source, columns = plan.sources[number], plan.columns[number]
    return f"{number}: {source.name} ({', '.join(f'{each.name} {each.type}' for each in columns)})"
