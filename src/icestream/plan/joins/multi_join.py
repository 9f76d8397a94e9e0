"""Joins of any number of streams, as users define them.

Idea: a join names columns with equal values, by one name that all streams have or by a name for
each stream. Join columns with the same name appear once in the result. Joins on other columns are
separate joins, whose results are streams again: a tree.

Invariants:
1. A null equals nothing (`test_a_null_in_a_key_joins_nothing`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.operators.dataflow.steps import Filtering
from icestream.plan.nodes.events import Joined, Mapped, Node
from icestream.plan.nodes.spilling import Spilling
from icestream.sql.expressions.compile import Predicate
from icestream.state.keys import KeyCodec

#: a column that all streams have, or a column of each stream
Equal = str | Sequence[str]
#: prefix of hidden columns, which are sent along with those of users
HIDDEN = "__join"


def joined(
    nodes: Sequence[Node], on: str | Sequence[Equal], where: str | None, spilling: Spilling
) -> Joined:
    """Return the node of a multi-way join: any number of streams, by columns with equal values."""
    keys = _keys(nodes, on)
    inputs = tuple(_without_nulls(node, names) for node, names in zip(nodes, keys, strict=True))
    columns = _columns(inputs, keys)
    payload = pa.schema(
        [inputs[port].payload.field(name).with_name(shown) for port, name, shown in columns]
    )
    condition = None if where is None else Predicate.bind(payload, where).text
    return Joined(
        payload,
        None,
        grows=True,
        reach=max(node.reach for node in inputs),
        delay=inputs[0].delay,
        inputs=inputs,
        keys=keys,
        columns=columns,
        where=condition,
        spilling=spilling,
    )


def join_text(node: Joined) -> str:
    """Return a join of streams as text; it is part of the stored description."""
    equal = ", ".join(
        names[0] if len(set(names)) == 1 else " = ".join(names)
        for names in zip(*node.keys, strict=True)
    )
    condition = f" where {node.where}" if node.where else ""
    return f"join {len(node.inputs)} streams by {equal}{condition}"


def _keys(nodes: Sequence[Node], on: str | Sequence[Equal]) -> tuple[tuple[str, ...], ...]:
    """Return the key columns of each stream."""
    equals = [on] if isinstance(on, str) else list(on)
    if not equals:
        msg = "a join needs columns with equal values: on='k', or on=[('a', 'b', 'c')]"
        raise DefinitionError(msg)
    rows = [(each,) * len(nodes) if isinstance(each, str) else tuple(each) for each in equals]
    for row in rows:
        if len(row) != len(nodes):
            msg = f"on={row} must name a column of each of the {len(nodes)} streams, in order"
            raise DefinitionError(msg)
        for node, name in zip(nodes, row, strict=True):
            if name not in node.payload.names:
                msg = f"join names {name!r}; the columns are {node.payload.names}"
                raise DefinitionError(msg)
        check_comparable([n.payload.field(name) for n, name in zip(nodes, row, strict=True)])
    return tuple(zip(*rows, strict=True))


def check_comparable(columns: Sequence[pa.Field]) -> None:
    """Refuse join columns whose equal values have different identities or none, or no meaning."""
    kinds = [each.type for each in columns]
    for is_number in (pa.types.is_signed_integer, pa.types.is_floating):
        if all(map(is_number, kinds)):
            return
    if any(kind != kinds[0] for kind in kinds):
        told = ", ".join(f"{each.name} {each.type}" for each in columns)
        msg = (
            f"columns that are compared must have one type, or be integers of any width; got "
            f"{told}: cast one of them with select('cast(x AS ...) AS x')"
        )
        raise DefinitionError(msg)
    KeyCodec(pa.schema(columns[:1]))


def _without_nulls(node: Node, names: tuple[str, ...]) -> Node:
    """Keep the events that have values in all key columns."""
    shown = _key_names(node) if isinstance(node, Joined) else set()
    missing = [name for name in names if node.payload.field(name).nullable and name not in shown]
    if not missing:
        return node
    quoted = ["`" + name.replace("`", "``") + "`" for name in missing]
    condition = Predicate.bind(node.payload, " AND ".join(f"{n} IS NOT NULL" for n in quoted))
    return Mapped(
        node.payload,
        node.scope,
        node.grows,
        node.reach,
        node.delay,
        before=node,
        change=Filtering(condition),
        text=f"where {condition.text}",
    )


def _key_names(node: Joined) -> set[str]:
    """Return the columns of a join's results that are keys of one of its inputs."""
    return {shown for port, name, shown in node.columns if name in node.keys[port]}


def _columns(
    inputs: Sequence[Node], keys: tuple[tuple[str, ...], ...]
) -> tuple[tuple[int, str, str], ...]:
    """Return the columns of combinations: all, but join columns with the same name once."""
    columns: list[tuple[int, str, str]] = []
    of: dict[str, int | None] = {}
    for port, node in enumerate(inputs):
        for name in node.payload.names:
            place = keys[port].index(name) if name in keys[port] else None
            if name not in of:
                of[name] = place
                columns.append((port, name, name))
            elif place is None or of[name] != place:
                msg = f"several streams of the join have {name!r}: rename it with select('x AS y')"
                raise DefinitionError(msg)
    return tuple(columns)


__all__ = ["HIDDEN", "Equal", "check_comparable", "join_text", "joined"]
