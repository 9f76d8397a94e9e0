"""Rules that rewrite relations; each keeps the meaning of a statement.

Idea: `conditions_pushed` moves every condition to the lowest relation that has its columns;
conditions over both sides of an inner join become the join's, and a condition on the rank of rows
becomes the count of a top. `projections_merged` removes projections under aggregates and
projections. `columns_pruned` removes columns that nothing reads, so that joins store no more than
they need. `changing_frames_grouped` makes groups of frames. `tables_joined_first` moves joins with
static tables to the stream they belong to, where Spark can do them.

Invariants:
1. Conditions move only to where they mean the same
   (`test_conditions_on_the_right_of_a_left_join_stay_above_it`).
2. Statements have the answers of another engine (`test_oracle_statements`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp

from icestream.core.errors import DefinitionError
from icestream.sql.relations.conditions import join_conditions, split
from icestream.sql.relations.expressions import filtered
from icestream.sql.relations.names import reference
from icestream.sql.relations.over_changing_rows import needs_later_rows, over_changing
from icestream.sql.relations.times import is_changing, time_of
from icestream.sql.relations.tree import (
    Conditions,
    Filter,
    Grouped,
    Join,
    Lasting,
    Over,
    Project,
    Relation,
    Scan,
    Streamed,
    TimeWindow,
    Top,
    UnionAll,
    WindowTable,
    columns_in,
    is_static,
    substituted,
    substituted_call,
)


def simplified(relation: Relation) -> Relation:
    """Apply all rules."""
    relation = changing_frames_grouped(conditions_pushed(relation))
    relation = tables_joined_first(relation)
    relation = projections_merged(relation)
    return columns_pruned(relation, frozenset(relation.columns))


# -- conditions ----------------------------------------------------------------------------


def conditions_pushed(  # noqa: PLR0911 - one for each kind of relation
    relation: Relation, conditions: Conditions = ()
) -> Relation:
    """Return the rows of a relation that satisfy conditions, which are moved down."""
    match relation:
        case Filter():
            return conditions_pushed(relation.input, relation.conditions + conditions)
        case Project():
            below = tuple(substituted(each, relation.items) for each in conditions)
            return replace(relation, input=conditions_pushed(relation.input, below))
        case Join():
            return _pushed_into_join(relation, conditions)
        case Grouped():
            below, above = _split_at_groups(relation, conditions)
            below = tuple(substituted(each, relation.keys) for each in below)
            return filtered(
                replace(relation, input=conditions_pushed(relation.input, below)), above
            )
        case WindowTable():
            below, above = split(conditions, relation.input.columns)
            if not relation.on_a_grid:
                below, above = (), conditions
            return filtered(
                replace(relation, input=conditions_pushed(relation.input, below)), above
            )
        case Lasting() | Streamed():
            return replace(relation, input=conditions_pushed(relation.input, conditions))
        case Top():
            return _pushed_into_top(relation, conditions)
        case Over():
            partitions = [
                {each.name for each in call.partition if isinstance(each, exp.Column)}
                for call in relation.calls.values()
            ]
            below, above = split(conditions, set.intersection(*partitions))
            return filtered(
                replace(relation, input=conditions_pushed(relation.input, below)), above
            )
        case UnionAll():
            parts = []
            for part in relation.parts:
                names: Mapping[str, exp.Expr] = {
                    name: reference(column)
                    for name, column in zip(relation.names, part.columns, strict=True)
                }
                below = tuple(substituted(each, names) for each in conditions)
                parts.append(conditions_pushed(part, below))
            return replace(relation, parts=tuple(parts))
    return filtered(relation, conditions)


def _split_at_groups(grouped: Grouped, conditions: Conditions) -> tuple[Conditions, Conditions]:
    """Return the conditions that can be applied to the rows of groups, and the others."""
    table = grouped.input
    if not grouped.keys or grouped.sets is not None:
        return (), conditions
    if not isinstance(table, WindowTable):
        return split(conditions, grouped.keys)
    edges = {table.start, table.end}
    keys = [name for name, each in grouped.keys.items() if not columns_in(each) & edges]
    return split(conditions, keys if table.on_a_grid else ())


def _pushed_into_join(join: Join, conditions: Conditions) -> Relation:
    """Move conditions into the sides of a join, or into the join itself."""
    if join.kind == "inner":
        join, conditions = replace(join, on=join.on + conditions), ()
    of_left, above = split(conditions, join.left.columns)
    if join.kind == "full":
        of_left, above = (), conditions
    on = join_conditions(join)
    of_right: Conditions = ()
    rest = join.on
    if join.kind != "full":
        of_right = on.right
        moved = [*on.right]
        if join.kind in ("inner", "semi"):
            of_left += on.left
            moved += on.left
        rest = tuple(each for each in join.on if not any(each is other for other in moved))
    sides = conditions_pushed(join.left, of_left), conditions_pushed(join.right, of_right)
    return filtered(replace(join, left=sides[0], right=sides[1], on=rest), above)


def _pushed_into_top(top: Top, conditions: Conditions) -> Relation:
    """Turn conditions on the rank into the count; move those on the partition down."""
    count, others = top.count, []
    for each in conditions:
        limit = None if top.rank is None else rank_limit(each, top.rank)
        if limit is None:
            others.append(each)
        elif count is None or limit < count:
            count = limit
    names = {each.name for each in top.partition if isinstance(each, exp.Column)}
    below, above = split(others, names)
    changed = replace(top, input=conditions_pushed(top.input, below), count=count)
    return filtered(changed, above)


def rank_limit(condition: exp.Expr, rank: str) -> int | None:
    """Return n for a condition that means rank <= n, for the rule about top rows."""
    sides = condition.this, condition.args.get("expression")
    flipped = {exp.LTE: exp.GTE, exp.LT: exp.GT, exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}
    kind = type(condition)
    if kind not in flipped:
        return None
    if isinstance(sides[0], exp.Literal):
        sides, kind = sides[::-1], flipped[kind]
    column, number = sides
    if not (isinstance(column, exp.Column) and column.name == rank):
        return None
    if not (isinstance(number, exp.Literal) and str(number.this).isdecimal()):
        return None
    count = int(str(number.this))
    if kind is exp.LTE or (kind is exp.EQ and count == 1):
        return count
    return count - 1 if kind is exp.LT else None


# -- frames of rows that change ------------------------------------------------------------


def changing_frames_grouped(relation: Relation) -> Relation:
    """Rule: turn functions over frames of rows that may change into groups, where possible."""
    relation = relation.over([changing_frames_grouped(each) for each in relation.inputs])
    if isinstance(relation, Over) and (is_changing(relation.input) or needs_later_rows(relation)):
        try:
            return over_changing(relation)
        except DefinitionError:
            return relation
    return relation


# -- joins with static tables --------------------------------------------------------------


def tables_joined_first(relation: Relation) -> Relation:
    """Rule: join static tables with the one side of a join that they are about."""
    relation = relation.over([tables_joined_first(each) for each in relation.inputs])
    if not (isinstance(relation, Join) and is_static(relation.right)):
        return relation
    inner = relation.left
    if relation.kind not in ("inner", "left"):
        return relation
    if isinstance(inner, Filter):
        return replace(inner, input=tables_joined_first(replace(relation, left=inner.input)))
    if isinstance(inner, Project):
        on = tuple(substituted(each, inner.items) for each in relation.on)
        below = replace(relation, left=inner.input, on=on)
        items = {**inner.items, **{name: reference(name) for name in relation.right.columns}}
        return Project(tables_joined_first(below), items)
    if not isinstance(inner, Join):
        return relation
    needed = columns_in(*relation.on) - set(relation.right.columns)
    if inner.kind in ("inner", "left", "semi", "anti") and needed <= set(inner.left.columns):
        below = replace(relation, left=inner.left)
        return replace(inner, left=tables_joined_first(below))
    if inner.kind == "inner" and needed <= set(inner.right.columns):
        below = replace(relation, left=inner.right)
        return replace(inner, right=tables_joined_first(below))
    return relation


# -- projections ---------------------------------------------------------------------------


def projections_merged(relation: Relation) -> Relation:
    """Apply the rule that removes projections under projections and aggregates."""
    relation = relation.over([projections_merged(each) for each in relation.inputs])
    match relation:
        case Project(input=Project() as inner):
            items = {name: substituted(each, inner.items) for name, each in relation.items.items()}
            return Project(inner.input, items)
        case Grouped(input=Project() as inner):
            keys = {name: substituted(each, inner.items) for name, each in relation.keys.items()}
            calls = {
                name: substituted_call(each, inner.items) for name, each in relation.calls.items()
            }
            return replace(relation, input=inner.input, keys=keys, calls=calls)
    return relation


# -- columns -------------------------------------------------------------------------------


def columns_pruned(  # noqa: PLR0911 - one for each kind of relation
    relation: Relation, needed: frozenset[str]
) -> Relation:
    """Apply the rule that removes columns of a relation that are not needed."""
    match relation:
        case Scan():
            named = {name: column for name, column in relation.named.items() if column in needed}
            return replace(relation, named=named)
        case Filter():
            below = needed | columns_in(*relation.conditions)
            return replace(relation, input=columns_pruned(relation.input, below))
        case Project():
            items = {name: each for name, each in relation.items.items() if name in needed}
            below = columns_in(*items.values())
            return Project(columns_pruned(relation.input, below), items)
        case Join():
            needed |= columns_in(*relation.on)
            sides = [columns_pruned(each, needed & set(each.columns)) for each in relation.inputs]
            return relation.over(sides)
        case Grouped():
            calls = {name: each for name, each in relation.calls.items() if name in needed}
            below = columns_in(*relation.keys.values(), *calls.values())
            grouping = relation.grouping if relation.sets or relation.grouping in needed else None
            inner = columns_pruned(relation.input, below)
            return replace(relation, input=inner, calls=calls, grouping=grouping)
        case WindowTable():
            below = needed | {relation.time, *relation.partition}
            if isinstance(relation.window, TimeWindow) and relation.window.gap is not None:
                below |= columns_in(relation.window.gap)
            below &= set(relation.input.columns)
            return replace(relation, input=columns_pruned(relation.input, below))
        case Lasting():
            below = needed | ({time} if (time := time_of(relation.input)) else set())
            return replace(relation, input=columns_pruned(relation.input, below))
        case Streamed():
            # which rows enter and leave depends on all columns
            below = frozenset(relation.columns)
            return replace(relation, input=columns_pruned(relation.input, below))
        case Top():
            rank = relation.rank if relation.rank in needed else None
            read = columns_in(*relation.partition, *(each.expression for each in relation.order))
            below = (needed | read) & set(relation.input.columns)
            return replace(relation, input=columns_pruned(relation.input, below), rank=rank)
        case Over():
            frames = {name: each for name, each in relation.calls.items() if name in needed}
            below = frozenset().union(needed, *(each.columns for each in frames.values()))
            inner = columns_pruned(relation.input, below & set(relation.input.columns))
            return Over(inner, frames) if frames else inner
        case UnionAll():
            places = [at for at, name in enumerate(relation.names) if name in needed]
            parts = tuple(
                columns_pruned(part, frozenset(part.columns[at] for at in places))
                for part in relation.parts
            )
            return UnionAll(parts, tuple(relation.names[at] for at in places))
    msg = f"unknown relation {type(relation).__name__}"
    raise AssertionError(msg)


# -- grouping sets -------------------------------------------------------------------------


def sets_expanded(grouped: Grouped) -> Grouped:
    """Rule: one grouping of rows that are there once for each set, without the other keys."""
    read = sorted(columns_in(*grouped.calls.values()))
    parts = []
    for chosen in grouped.sets or ():
        items: dict[str, exp.Expr] = {}
        number = 0
        for name, key in grouped.keys.items():
            number = 2 * number + (name not in chosen)
            missing = exp.Case(ifs=[exp.If(this=exp.false(), true=key.copy())])
            items[name] = key if name in chosen else missing
        items |= {name: reference(name) for name in read}
        if grouped.grouping is not None:
            items[grouped.grouping] = exp.cast(exp.Literal.number(number), "BIGINT")
        parts.append(Project(grouped.input, items))
    union = UnionAll(tuple(parts), parts[0].columns)
    names = [*grouped.keys, *([grouped.grouping] if grouped.grouping else [])]
    return Grouped(union, {name: reference(name) for name in names}, grouped.calls)
