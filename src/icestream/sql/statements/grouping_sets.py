"""GROUP BY: the keys, and the sets of keys to group by at once.

Idea: each element of the clause denotes one or more sets of keys: a column its own set, ROLLUP its
prefixes, CUBE its subsets, GROUPING SETS those listed. The sets of the clause are the unions of one
set per element, as in SQL.

Invariants:
1. The sets are those of Spark (`test_grouping_sets_are_expanded`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product

from sqlglot import exp

from icestream.sql.statements.dialect import written
from icestream.sql.statements.tokens import Text

#: the keys that an element of the clause denotes: one, or none for columns of the window
Resolve = Callable[[exp.Expr], Sequence[exp.Expr]]
Set = tuple[str, ...]


def read_grouping(
    group: exp.Group | None, resolve: Resolve, text: Text
) -> tuple[list[exp.Expr], tuple[tuple[int, ...], ...] | None]:
    """Read GROUP BY: the keys, each once, and their sets by position; none for a list."""
    if group is None:
        return [], None
    reader = _Reader(resolve)
    elements = group.expressions
    named = group.args.get("grouping_sets")
    if named:
        # GROUP BY a, b GROUPING SETS (...) groups by the sets; the list names the keys
        for each in elements:
            reader.sets(each)
        elements = named
    # WITH ROLLUP and WITH CUBE apply to all elements
    suffixes = [*(group.args.get("rollup") or ()), *(group.args.get("cube") or ())]
    if suffixes:
        elements = [type(suffixes[0])(expressions=elements)]
    choices = [reader.sets(each) for each in elements]
    sets = [_union(chosen) for chosen in product(*choices)]
    keys = list(reader.keys)
    places = tuple(tuple(sorted(keys.index(key) for key in chosen)) for chosen in sets)
    if len(set(places)) < len(places):
        raise text.error(
            text.keyword("GROUP") or text.place,
            "GROUP BY contains the same set of columns twice: leave one out",
        )
    is_plain = not any(isinstance(each, _SETS) for each in elements)
    return list(reader.keys.values()), None if is_plain else places


_SETS = (exp.GroupingSets, exp.Rollup, exp.Cube)


def _union(sets: Sequence[Set]) -> Set:
    return tuple(dict.fromkeys(key for chosen in sets for key in chosen))


class _Reader:
    """Collects the keys while it expands the elements."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        #: keys by their text, in order of appearance
        self.keys: dict[str, exp.Expr] = {}

    def sets(self, element: exp.Expr) -> list[Set]:
        if isinstance(element, exp.Rollup):
            units = [self._unit(each) for each in element.expressions]
            return [_union(units[:length]) for length in range(len(units), -1, -1)]
        if isinstance(element, exp.Cube):
            units = [self._unit(each) for each in element.expressions]
            return [
                _union(chosen)
                for length in range(len(units), -1, -1)
                for chosen in combinations(units, length)
            ]
        if isinstance(element, exp.GroupingSets):
            return [chosen for each in element.expressions for chosen in self.sets(each)]
        return [self._unit(element)]

    def _unit(self, element: exp.Expr) -> Set:
        """Return the keys of an element: one column, or a list of them in parentheses."""
        if isinstance(element, exp.Tuple):
            return _union([self._unit(each) for each in element.expressions])
        keys = self._resolve(element.unnest())
        for key in keys:
            self.keys.setdefault(written(key), key)
        return tuple(written(key) for key in keys)
