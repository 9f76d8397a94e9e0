"""Dataflows as text: components, their inputs and outputs, and the groups in their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from icestream.core.units import format_bytes
from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.plan.events.dataflow import Dataflow, described
from icestream.plan.joins.order import (
    ASSUMED_KEYS,
    ASSUMED_ROWS,
    StreamStatistics,
    results_of,
    row_bytes,
    state_of,
)
from icestream.plan.nodes.spilling import WRITTEN, Spilling


def explained_dataflow(plan: Dataflow, progress: Mapping[str, Any] | None = None) -> str:
    """Return a dataflow as text; joins use the sizes of a progress report."""
    reports = progress["icestream"].get("joins", ()) if progress is not None else ()
    streams = {each["join"]: each["streams"] for each in reports}
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
        join = plan.specs[number].join
        if join is not None:
            assumed = [(ASSUMED_ROWS, ASSUMED_KEYS)] * join.ports
            lines.append(f"{'expected':>16}  {_expected(join, assumed)}")
            known = _sizes(streams.get(join.number, ()))
            if known:
                lines.append(f"{'measured':>16}  {_expected(join, known)} in memory")
        for grouping, synopses in enumerate(plan.specs[number].groupings):
            if synopses:
                names = ", ".join(each.name for each in synopses)
                lines.append(f"{'groups':>16}  grouping {grouping} keeps {names}")
    if plan.spilling is not None:
        lines += ["", *_spilling(plan.spilling)]
    return "\n".join(lines)


def _sizes(streams: Sequence[Mapping[str, int]]) -> list[tuple[int, int]]:
    """Return the rows and keys of the streams of a join, if all have some."""
    found = [(each["rows"], each["keys"]) for each in streams]
    return found if all(rows for rows, _ in found) else []


def _expected(join: MultiJoinSpec, known: Sequence[tuple[int, int]]) -> str:
    """Return the state and results that are expected of rows and keys of a join's streams."""
    streams = [
        StreamStatistics(*sizes, row_bytes(payload))
        for sizes, payload in zip(known, join.inputs, strict=True)
    ]
    shown = ", ".join(f"{rows:,} rows of {keys:,} keys" for rows, keys in known)
    stored = format_bytes(round(state_of(streams)))
    return f"{stored} stored and {results_of(streams):,.0f} results, for {shown}"


def _spilling(spilling: Spilling) -> list[str]:
    """Return when joins spill, and what."""
    order = "as written" if spilling.order == WRITTEN else "by what they are expected to keep"
    return [
        f"{'order':>16}  joins {order}",
        f"{'spills':>16}  by {spilling.strategy}, of {spilling.partitions} partitions of each join",
        f"{'':>16}  when joins fill more than {spilling.threshold:.0%} of the memory: "
        f"{spilling.amount:.0%} of what they hold",
    ]


def _source(plan: Dataflow, number: int) -> str:
    source, columns = plan.sources[number], plan.columns[number]
    return f"{number}: {source.name} ({', '.join(f'{each.name} {each.type}' for each in columns)})"
