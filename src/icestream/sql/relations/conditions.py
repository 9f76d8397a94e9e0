"""Conditions as conjunctions.

Idea: a condition is split at AND, and BETWEEN into its two comparisons, so that each part can go
where its columns are.

Invariants:
1. The parts together mean the condition (`test_conditions_are_split_at_and`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from icestream.sql.relations.tree import Conditions, Join, reads_only


def parts_of(condition: exp.Expr | None) -> list[exp.Expr]:
    """Return the parts of a condition."""
    match condition:
        case None:
            return []
        case exp.Paren() | exp.Where() | exp.Having():
            return parts_of(condition.this)
        case exp.And():
            return parts_of(condition.left) + parts_of(condition.right)
        case exp.Between():
            low = exp.GTE(this=condition.this.copy(), expression=condition.args["low"].copy())
            high = exp.LTE(this=condition.this.copy(), expression=condition.args["high"].copy())
            return [low, high]
    return [condition]


def all_of(conditions: Iterable[exp.Expr]) -> exp.Expr:
    """Return one condition; there is at least one."""
    return exp.and_(*(each.copy() for each in conditions), copy=False)


@dataclass(frozen=True)
class JoinConditions:
    """What ON says: equal keys of the two sides, conditions on one side, and the others."""

    keys: tuple[tuple[exp.Expr, exp.Expr], ...]
    left: Conditions
    right: Conditions
    others: Conditions


def join_conditions(join: Join) -> JoinConditions:
    """Sort the conditions of a join."""
    left, right = set(join.left.columns), set(join.right.columns)
    keys, of_left, of_right, others = [], [], [], []
    for each in join.on:
        if reads_only(left, each):
            of_left.append(each)
        elif reads_only(right, each):
            of_right.append(each)
        elif isinstance(each, exp.EQ) and (pair := _sides(each, left, right)):
            keys.append(pair)
        else:
            others.append(each)
    return JoinConditions(tuple(keys), tuple(of_left), tuple(of_right), tuple(others))


def _sides(equality: exp.EQ, left: set[str], right: set[str]) -> tuple[exp.Expr, exp.Expr] | None:
    """Return the left and the right expression of an equality between two sides."""
    pair = equality.left, equality.right
    for one, other in (pair, pair[::-1]):
        if reads_only(left, one) and reads_only(right, other):
            return one, other
    return None


def split(conditions: Sequence[exp.Expr], columns: Iterable[str]) -> tuple[Conditions, Conditions]:
    """Return the conditions that read nothing but some columns, and the others."""
    known = set(columns)
    return (
        tuple(each for each in conditions if reads_only(known, each)),
        tuple(each for each in conditions if not reads_only(known, each)),
    )
