"""The cost of a join of several streams by one key: as one flat join, or as a tree of binary joins.

Idea: streams that share a key can meet in one operator, whose state is only the streams, or two at
a time; then intermediate results are stored too, but are not computed again for each later row.
From rates and distinct keys follow expected numbers for both: stored bytes, and rows that are
probed. Bytes decide, because memory is what spills; if both plans store about the same, the work
decides.

Invariants:
1. The best tree is at least as good as any tree of binary joins
   (`test_oracle_no_tree_costs_less_than_the_best`).
2. The expected results of a join do not depend on the plan
   (`test_results_do_not_depend_on_the_plan`).
3. Two streams are joined flat (`test_two_streams_are_one_join`).

Cost: 3**n steps for n streams, n at most `MOST`; more streams are joined flat without a search.

Limits: keys are assumed to be uniform and, of two streams, the smaller set of keys to be part of
the larger one; a skewed stream makes more results than expected, in both plans alike.

References: distinct counts under containment of value sets are textbook; flat joins that probe and
keep no intermediate results: Viglas, Naughton, Burger (2003).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.core.units import format_bytes

#: streams for which trees are searched
MOST = 12
#: bytes of a stored row besides its payload
HEAD_BYTES = 32
#: plans whose state differs by less than this fraction store about the same
ALIKE = 0.1

#: rows and keys of each stream, if nothing was measured
ASSUMED_ROWS = 1_000_000
ASSUMED_KEYS = 100_000

FLAT, TREE = "flat", "tree"


@dataclass(frozen=True)
class StreamStatistics:
    """The expectations for one stream while its rows are stored."""

    name: str
    #: rows that are stored at once: those of a window, or of the stream so far
    rows: float
    #: distinct keys among them
    keys: float
    #: bytes of the payload of a row
    row_bytes: float

    def __post_init__(self) -> None:
        """Refuse impossible numbers."""
        if self.rows < 0 or self.row_bytes < 0 or not 0 <= self.keys <= max(self.rows, 0):
            msg = (
                f"statistics of {self.name!r} are invalid: rows and bytes must not be negative, "
                f"and there cannot be more keys than rows; got {self}"
            )
            raise DefinitionError(msg)


@dataclass(frozen=True)
class Cost:
    """The expected cost of a plan."""

    #: how streams meet: "(a, b, c)" or "((a, b), c)"
    text: str
    #: stored bytes of the streams, and of intermediate results
    inputs: float
    between: float
    #: rows that are probed or made on the way, until all rows have arrived
    work: float

    @property
    def state(self) -> float:
        return self.inputs + self.between


@dataclass(frozen=True)
class JoinPlans:
    """Both ways to join streams by one key."""

    streams: tuple[StreamStatistics, ...]
    flat: Cost
    #: the best tree of binary joins; None if there are two streams, or too many to search
    tree: Cost | None
    #: expected results
    results: float

    @cached_property
    def chosen(self) -> str:
        """Return `flat` or `tree`."""
        if self.tree is None:
            return FLAT
        most = max(self.flat.state, self.tree.state)
        if abs(self.tree.state - self.flat.state) > ALIKE * most:
            return FLAT if self.flat.state < self.tree.state else TREE
        return FLAT if self.flat.work <= self.tree.work else TREE

    @property
    def why(self) -> str:
        """Return what was chosen and why, as text."""
        count = len(self.streams)
        if self.tree is None and count == 2:
            return "flat: two streams are one join"
        if self.tree is None:
            return f"flat: {count} streams are too many to compare trees of joins"
        flat, tree = self.flat, self.tree
        sizes = (
            f"one join of {count} stores {_size(flat.state)}; joined as {tree.text} it stores "
            f"{_size(tree.state)}, {_size(tree.between)} of that intermediate results"
        )
        work = f"rows probed: {flat.work:,.0f} flat, {tree.work:,.0f} as a tree"
        if abs(tree.state - flat.state) > ALIKE * max(flat.state, tree.state):
            return f"{self.chosen}: {sizes} ({work})"
        return f"{self.chosen}: both store about the same and it probes less; {sizes} ({work})"


def assumed(payloads: Sequence[pa.Schema]) -> list[StreamStatistics]:
    """Assume, for the cost of joins, streams of which only the columns are known."""
    return [
        StreamStatistics(f"stream {port}", ASSUMED_ROWS, ASSUMED_KEYS, row_bytes(payload))
        for port, payload in enumerate(payloads)
    ]


def measured(
    payloads: Sequence[pa.Schema], sizes: Sequence[tuple[int, int]]
) -> list[StreamStatistics]:
    """Return, for the cost of joins, streams with measured numbers of rows and keys."""
    return [
        StreamStatistics(f"stream {port}", rows, keys, row_bytes(payload))
        for port, (payload, (rows, keys)) in enumerate(zip(payloads, sizes, strict=True))
    ]


def row_bytes(payload: pa.Schema) -> int:
    """Return the bytes of a row for the cost of joins: text is as long as two numbers."""
    return sum(8 if pa.types.is_primitive(each.type) else 16 for each in payload)


def join_plans(streams: Sequence[StreamStatistics]) -> JoinPlans:
    """Compare the cost of a flat join of streams with that of the best tree of binary joins."""
    if len(streams) < 2:
        msg = f"a join needs at least two streams; got {len(streams)}"
        raise DefinitionError(msg)
    named = tuple(streams)
    inputs = sum(each.rows * (each.row_bytes + HEAD_BYTES) for each in named)
    flat = Cost(f"({', '.join(each.name for each in named)})", inputs, 0.0, _flat_work(named))
    search = 2 < len(named) <= MOST
    tree = _best_tree(named, inputs) if search else None
    return JoinPlans(named, flat, tree, results_of(named))


def results_of(streams: Sequence[StreamStatistics]) -> float:
    """Return the expected results, for the cost of joins: rows of all, for each common key."""
    if any(each.keys == 0 for each in streams):
        return 0.0
    common = min(each.keys for each in streams)
    for each in streams:
        common *= each.rows / each.keys
    return common


# -- inside --------------------------------------------------------------------------------------


def _flat_work(streams: tuple[StreamStatistics, ...]) -> float:
    """Return the rows that a flat join probes: each new row is matched with all other streams.

    It probes the streams with the fewest rows per key first. A row arrives on average when half of
    the others are there and finds, of j others, 1 / (j + 1) of the final combinations.
    """
    work = 0.0
    for mine in streams:
        others = sorted(
            (each for each in streams if each is not mine),
            key=lambda each: each.rows / max(each.keys, 1.0),
        )
        work += mine.rows
        for count in range(1, len(others) + 1):
            work += results_of([mine, *others[:count]]) / (count + 1)
    return work


def _best_tree(streams: tuple[StreamStatistics, ...], inputs: float) -> Cost:
    """Return the tree with the fewest intermediate bytes, and of those the least work."""
    whole = (1 << len(streams)) - 1
    #: bytes stored by the joins below and at a set of streams, work, text
    best: dict[int, tuple[float, float, str]] = {
        1 << place: (0.0, 0.0, each.name) for place, each in enumerate(streams)
    }
    members = {
        group: [each for place, each in enumerate(streams) if group >> place & 1]
        for group in range(1, whole + 1)
    }
    made = {group: results_of(inside) for group, inside in members.items()}
    for group in range(1, whole + 1):
        if group in best:
            continue
        found: list[tuple[float, float, str]] = []
        lowest = group & -group
        left = (group - 1) & group
        while left:
            if left & lowest:
                right = group ^ left
                kept = (
                    best[left][0]
                    + best[right][0]
                    + sum(_kept(members[side], made[side]) for side in (left, right))
                )
                work = best[left][1] + best[right][1] + made[left] + made[right] + made[group]
                found.append((kept, work, f"({best[left][2]}, {best[right][2]})"))
            left = (left - 1) & group
        best[group] = min(found)
    kept, work, text = best[whole]
    return Cost(text, inputs, kept, work)


def _kept(inside: list[StreamStatistics], rows: float) -> float:
    """Return the bytes of the results of some streams as stored by the next join."""
    if len(inside) == 1:
        return 0.0
    return rows * (sum(each.row_bytes for each in inside) + HEAD_BYTES)


def _size(size: float) -> str:
    return format_bytes(round(size))
