"""Dataflows in words: components, what enters and leaves them, and the groups they keep."""

from __future__ import annotations

import pyarrow as pa

from icestream.operators.multi_join.spec import MultiJoinSpec
from icestream.plan.dataflow import Dataflow, described
from icestream.plan.join_cost import StreamStatistics, join_plans
from icestream.plan.spilling import Spilling

#: of each stream, where plans of joins are compared for people
EXAMPLE_ROWS = 1_000_000
EXAMPLE_KEYS = 100_000


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
        join = plan.specs[number].join
        if join is not None:
            lines.append(f"{'because':>16}  {_why_flat(join)}")
        for grouping, synopses in enumerate(plan.specs[number].groupings):
            if synopses:
                names = ", ".join(each.name for each in synopses)
                lines.append(f"{'groups':>16}  grouping {grouping} keeps {names}")
    if plan.spilling is not None:
        lines += ["", *_spilling(plan.spilling)]
    return "\n".join(lines)


def _why_flat(join: MultiJoinSpec) -> str:
    """Say why the streams of a join meet at once, by what that keeps of so many rows of each."""
    streams = [
        StreamStatistics(f"stream {port}", EXAMPLE_ROWS, EXAMPLE_KEYS, _row_bytes(payload))
        for port, payload in enumerate(join.inputs)
    ]
    why = join_plans(streams).why
    if join.ports == 2:
        return why
    return f"{why}, for {EXAMPLE_ROWS:,} rows and {EXAMPLE_KEYS:,} keys of each stream"


def _row_bytes(payload: pa.Schema) -> int:
    """Return the bytes of a row, text taken to be as long as two numbers."""
    widths = {True: 8, False: 16}
    return sum(widths[pa.types.is_primitive(each.type)] for each in payload)


def _spilling(spilling: Spilling) -> list[str]:
    """Say when joins give up memory, and what."""
    return [
        f"{'spills':>16}  by {spilling.strategy}, of {spilling.partitions} partitions of each join",
        f"{'':>16}  when joins fill more than {spilling.threshold:.0%} of the memory: "
        f"{spilling.amount:.0%} of what they hold",
    ]


def _source(plan: Dataflow, number: int) -> str:
    source, columns = plan.sources[number], plan.columns[number]
    return f"{number}: {source.name} ({', '.join(f'{each.name} {each.type}' for each in columns)})"
