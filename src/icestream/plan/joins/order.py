"""The order of joins: which streams of a tree of joins meet first, chosen by the expected state.

Idea: joins of joins, with only conditions between them, define which columns of which streams are
equal; any tree of joins that compares all of them makes the same rows. Results that another join
reads are stored by it, those of the last join are not, so the state of a tree depends on which
streams meet last. The tree with the fewest expected bytes is searched, and used if it stores
clearly less than the one that was written. Successive joins by one key count as one flat join.

Invariants:
1. The order changes no row and no column (`test_oracle_joins_in_any_order_give_the_same_rows`,
   `test_oracle_random_trees_with_spills_restarts_and_clean_up_anywhere`).
2. No tree is expected to store less than the one found
   (`test_oracle_no_order_is_expected_to_keep_less`).
3. Intermediate results carry the columns that are needed after them, and no others
   (`test_results_on_the_way_carry_what_is_needed_behind_them`).

Cost: 3**n steps for n streams, n at most `MOST`; joins of more streams stay as written.

Limits: a projection or another lifetime between two joins fixes their order, and so do streams with
a column of the same name. Keys are assumed to be uniform and, of two streams, the smaller set of
keys to be part of the larger one; a skewed stream makes more results than expected.

References: dynamic programming over sets of streams is textbook (Selinger et al., 1979); distinct
counts under containment of value sets are textbook; flat joins that probe and keep no intermediate
results: Viglas, Naughton, Burger (2003).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import pyarrow as pa

from icestream.operators.dataflow.steps import Filtering
from icestream.plan.nodes.events import Joined, Mapped, Node
from icestream.plan.nodes.spilling import WRITTEN
from icestream.sql.expressions.compile import Predicate

#: most streams whose order is searched
MOST = 8

_Condition = TypeVar("_Condition")
#: columns with equal values
Equals = frozenset[str]
Keys = frozenset[Equals]


#: bytes of a stored row besides its payload
HEAD_BYTES = 32
#: plans whose state differs by less than this fraction store about the same
ALIKE = 0.1

#: rows and keys of each stream, if nothing was measured
ASSUMED_ROWS = 1_000_000
ASSUMED_KEYS = 100_000


class StreamStatistics(NamedTuple):
    """The expectations for one stream while its rows are stored."""

    #: rows that are stored at once: those of a window, or of the stream so far
    rows: float
    #: distinct keys among them
    keys: float
    #: bytes of the payload of a row
    row_bytes: float


def row_bytes(payload: pa.Schema) -> int:
    """Return the bytes of a row for the cost of joins: text is as long as two numbers."""
    return sum(8 if pa.types.is_primitive(each.type) else 16 for each in payload)


def state_of(streams: Sequence[StreamStatistics]) -> float:
    """Return the bytes that a join of streams is expected to store."""
    return sum(each.rows * (each.row_bytes + HEAD_BYTES) for each in streams)


def results_of(streams: Sequence[StreamStatistics]) -> float:
    """Return the expected results, for the cost of joins: rows of all, for each common key."""
    if any(each.keys == 0 for each in streams):
        return 0.0
    common = min(each.keys for each in streams)
    for each in streams:
        common *= each.rows / each.keys
    return common


@dataclass(frozen=True)
class Tree:
    """Streams that meet two at a time: a position in the list, or two trees and a key."""

    streams: frozenset[int]
    key: Keys = frozenset()
    parts: tuple[Tree, ...] = ()
    #: bytes of intermediate results that joins store, and rows made on the way
    kept: float = 0.0
    work: float = 0.0


@dataclass
class _Cluster:
    """Joins of joins with only conditions between them."""

    root: Joined
    #: how many nodes read the events of each, by id
    uses: Counter[int]
    streams: list[Node] = field(default_factory=list)
    #: columns that are compared
    equals: list[set[str]] = field(default_factory=list)
    #: conditions of joins and filters between them, with the columns that they read
    wheres: dict[str, frozenset[str]] = field(default_factory=dict)
    filters: dict[Mapped, frozenset[str]] = field(default_factory=dict)
    #: whether columns keep their names
    plain: bool = True

    def gather(self, node: Node) -> Tree:
        """Take joins apart into streams and conditions; return the tree as written."""
        match node:
            case Mapped(change=Filtering() as change) if self._is_between(node):
                self.filters[node] = frozenset(change.predicate.columns)
                return self.gather(node.before)
        if not self._is_inside(node) or not isinstance(node, Joined):
            self.streams.append(node)
            return Tree(frozenset({len(self.streams) - 1}))
        tree, *others = [self.gather(each) for each in node.inputs]
        self.plain &= all(name == shown for _, name, shown in node.columns)
        for names in zip(*node.keys, strict=True):
            _equal(self.equals, set(names))
        if node.where is not None:
            self.wheres[node.where] = frozenset(Predicate.bind(node.payload, node.where).columns)
        for other in others:
            tree = Tree(tree.streams | other.streams, parts=(tree, other))
        return tree

    @property
    def owners(self) -> dict[str, int]:
        names = enumerate(self.streams)
        return {name: place for place, each in names for name in each.payload.names}

    @property
    def is_free(self) -> bool:
        """Return whether the order can be chosen: column names and their streams are unique."""
        owners = self.owners
        return (
            self.plain
            and 2 < len(self.streams) <= MOST
            and len(owners) == sum(len(each.payload) for each in self.streams)
            and all(len({owners[name] for name in each}) == len(each) for each in self.equals)
        )

    def _is_between(self, node: Mapped) -> bool:
        """Return whether a filter stands between two joins, alone or with other filters."""
        below: Node = node
        while isinstance(below, Mapped) and isinstance(below.change, Filtering):
            if self.uses[id(below)] != 1:
                return False
            below = below.before
        return self._is_inside(below)

    def _is_inside(self, node: Node) -> bool:
        if node is self.root:
            return True
        once = self.uses[id(node)] == 1
        return once and isinstance(node, Joined) and node.spilling == self.root.spilling


def reordered(
    root: Joined,
    uses: Counter[int],
    needed: frozenset[str] | None,
    make: Callable[[Node], Node],
) -> Node | None:
    """Return joins in the order with the least expected state; None to leave them unchanged.

    `uses` is the number of nodes that read the events of each node, by id; `needed` are the columns
    that are read after the joins, None for all; `make` transforms a stream.
    """
    if root.spilling.order == WRITTEN:
        return None
    cluster = _Cluster(root, uses)
    tree = cluster.gather(root)
    if not cluster.is_free:
        return None
    search = _Search(cluster)
    written, best = search.cost(tree), search.best()
    if best is None or best.kept >= (1 - ALIKE) * written.kept:
        return None
    cluster.streams = list(map(make, cluster.streams))
    return _Building(cluster, needed).node(best)


def _equal(classes: list[set[str]], names: set[str]) -> None:
    """Record that columns are equal, and everything equal to one of them."""
    same = [each for each in classes if each & names]
    classes[:] = [each for each in classes if not each & names]
    classes.append(names.union(*same))


# -- which tree ----------------------------------------------------------------------------------


class _Search:
    """Finds the tree with the least expected state."""

    def __init__(self, cluster: _Cluster) -> None:
        self._streams = cluster.streams
        self.classes = [frozenset(each) for each in cluster.equals]
        owners = cluster.owners
        #: compared columns of each stream
        self._keys = [
            frozenset(each for each in self.classes if any(owners[n] == place for n in each))
            for place in range(len(self._streams))
        ]

    def best(self) -> Tree | None:
        """Return the best tree of all streams; None if some share nothing with the others."""
        count = len(self._streams)
        found: dict[frozenset[int], dict[Keys, Tree]] = {}
        for number in range(1, 1 << count):
            group = frozenset(place for place in range(count) if number >> place & 1)
            if len(group) == 1:
                found[group] = {frozenset(): Tree(group)}
                continue
            trees: dict[Keys, Tree] = {}
            for left, right in _splits(group):
                for one in found[left].values():
                    for other in found[right].values():
                        made = self._joined(one, other)
                        if made is not None and _rank(made) < _rank(trees.get(made.key)):
                            trees[made.key] = made
            found[group] = trees
        return min(found[frozenset(range(count))].values(), key=_rank, default=None)

    def cost(self, tree: Tree) -> Tree:
        if not tree.parts:
            return tree
        left, right = (self.cost(part) for part in tree.parts)
        made = self._joined(left, right)
        assert made is not None
        return made

    def rows(self, streams: frozenset[int]) -> float:
        """Return the expected results of joining streams."""
        rows = float(ASSUMED_ROWS) ** len(streams)
        for each in self.classes:
            shared = sum(each in self._keys[place] for place in streams)
            rows /= float(ASSUMED_KEYS) ** max(0, shared - 1)
        return rows

    def _joined(self, left: Tree, right: Tree) -> Tree | None:
        key = self._columns(left) & self._columns(right)
        if not key:
            return None
        kept = left.kept + right.kept
        work = left.work + right.work
        for part in (left, right):
            if part.parts and part.key != key:
                rows = self.rows(part.streams)
                payload = sum(row_bytes(self._streams[place].payload) for place in part.streams)
                kept += rows * (payload + HEAD_BYTES)
                work += rows
        return Tree(left.streams | right.streams, key, (left, right), kept, work)

    def _columns(self, tree: Tree) -> Keys:
        return frozenset[Equals]().union(*(self._keys[place] for place in tree.streams))


def _splits(group: frozenset[int]) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
    """Yield all ways to divide streams in two, with the first stream in the first part."""
    first, *others = sorted(group)
    for number in range((1 << len(others)) - 1):
        left = frozenset(
            {first, *(each for place, each in enumerate(others) if number >> place & 1)}
        )
        yield left, group - left


def _rank(tree: Tree | None) -> tuple[float, float]:
    return (float("inf"), float("inf")) if tree is None else (tree.kept, tree.work)


# -- nodes ---------------------------------------------------------------------------------------


class _Building:
    """Makes the nodes of a tree."""

    def __init__(self, cluster: _Cluster, needed: frozenset[str] | None) -> None:
        root = cluster.root
        self._root = root
        self._streams = cluster.streams
        self._owners = cluster.owners
        self._equals = cluster.equals
        self._wheres = dict(cluster.wheres)
        self._filters = dict(cluster.filters)
        self._shown = [n for n in root.payload.names if needed is None or n in needed]
        #: columns that are read on the way, or that no equal column can replace
        self._own = frozenset[str]().union(*self._wheres.values(), *self._filters.values()) | {
            name for name in self._shown if not self._stand_ins(name)
        }

    def node(self, tree: Tree) -> Node:
        """Return the results of a tree, with the filters of its streams applied."""
        made: Node = self._join(tree) if tree.parts else self._streams[min(tree.streams)]
        for each in self._due(self._filters, tree):
            del self._filters[each]
            made = replace(each, before=made, payload=made.payload, reach=made.reach)
        return made

    def _join(self, tree: Tree) -> Joined:
        inputs = tuple(map(self.node, tree.parts))
        wheres = self._due(self._wheres, tree)
        for text in wheres:
            del self._wheres[text]
        columns = tuple(self._column(name, tree, inputs) for name in self._carried(tree))
        order = sorted(tree.key, key=sorted)
        return replace(
            self._root,
            payload=pa.schema(
                [inputs[port].payload.field(name).with_name(shown) for port, name, shown in columns]
            ),
            reach=max(each.reach for each in inputs),
            inputs=inputs,
            keys=tuple(tuple(_first(each, equals) for equals in order) for each in inputs),
            columns=columns,
            where=" AND ".join(f"({each})" for each in wheres) or None,
        )

    def _carried(self, tree: Tree) -> list[str]:
        """Return the columns of a join: those needed after it, and one of each compared value."""
        inside = [name for name, place in self._owners.items() if place in tree.streams]
        firsts = {
            next(name for name in inside if name in each)
            for each in self._equals
            if not each.isdisjoint(inside)
        }
        carried = [name for name in inside if name in self._own | firsts]
        is_last = len(tree.streams) == len(self._streams)
        return list(dict.fromkeys([*self._shown, *carried])) if is_last else carried

    def _column(self, name: str, tree: Tree, inputs: tuple[Node, ...]) -> tuple[int, str, str]:
        """Return the origin of a column: itself, or one that equals it."""
        owner = self._owners[name]
        port = next(port for port, each in enumerate(tree.parts) if owner in each.streams)
        known = inputs[port].payload.names
        return port, name if name in known else _first(inputs[port], self._stand_ins(name)), name

    def _stand_ins(self, name: str) -> set[str]:
        """Return columns with the same values as one, bit by bit."""
        equal: set[str] = next((each for each in self._equals if name in each), set())
        kinds = {self._streams[self._owners[n]].payload.field(n).type for n in equal}
        exact = len(kinds) == 1 and not any(map(pa.types.is_floating, kinds))
        return equal if exact else set()

    def _due(self, conditions: Mapping[_Condition, frozenset[str]], tree: Tree) -> list[_Condition]:
        """Return the conditions whose columns are all in the results of a tree."""
        return [
            each
            for each, read in conditions.items()
            if all(self._owners[name] in tree.streams for name in read)
        ]


def _first(node: Node, names: set[str] | frozenset[str]) -> str:
    known: list[str] = node.payload.names
    return next(name for name in known if name in names)
