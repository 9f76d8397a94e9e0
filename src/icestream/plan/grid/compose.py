"""Composes windows of the complete results of other windows instead of panes, if that is cheaper.

Idea: a complete window is a partial result of every larger window that contains it. A window is
either computed from scratch, from tiles that fill its range, or by sliding, from tiles that fill
what enters and what leaves. Tiles are panes, other windows, or factor windows that are not in the
query, chosen by shortest paths. Which windows are kept for others is found by an exhaustive search
if they are few, else by local improvement.

    10 min   [0        )[10       )[20       )        15 min = 10 + 5, then 5 + 10, in turn
     5 min   [0  )[5  )[10  )[15  )[20  )[25  )       20 min = 10 + 10
    panes    |||||||||||||||||||||||||||||||||        (15 min lies in every other 20 min only)

Upstream B alone tiles every window of A = (range, slide, offset) exactly if B.slide divides A.slide
and A.offset - B.offset, and B.range divides A.range, and B.slide divides B.range unless the ranges
are equal. Mixed tilings need none of this: they differ from start to start and repeat with
the least common multiple of the slides.

Invariants:
1. Executing a composition gives the same as folding every window from panes
   (`test_oracle_composed_windows_equal_folded_ones`).
2. No tiling has fewer rows than the chosen one (`test_oracle_tilings_are_the_cheapest`), and few
   windows are composed at the least cost (`test_oracle_few_windows_are_composed_at_least_cost`).
3. `tiles_of` is exact (`test_oracle_one_upstream_tiles_exactly_when_the_condition_says_so`).
4. A composition never costs more than panes alone (`test_composing_never_costs_more_than_panes`).

Cost, in rows consolidated per second of event time: from scratch, the tiles of the range; by
sliding, the tiles that enter and leave or, if a field has no inverse, three times the panes of a
slide, because of the two stacks. `keeping` is paid for every row that is kept for others. So
composition pays for windows that overlap little, over panes much shorter than their slides; a
window that overlaps much slides, and gains only if its slide is as long as other windows.

Limits: factor windows tumble, at greatest common divisors of ranges, slides and offsets. Tiles do
not overlap, even if there are only minima, which would allow it. Inputs whose starts meet a
window's too rarely (more than `PLACES` to search) are ignored, and `exact` is then False.
Cumulative windows are made of panes; so are sliding ones in the operator (`sliding=False`). If
slides do not divide ranges, factors at other lengths could save some percent more.

References: Madsen, Zhou, Su (2016), sections 4.2 and 6.1; factor windows (Wu et al., 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, groupby
from typing import Literal

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros
from icestream.core.units import format_interval
from icestream.plan.grid.cost import SECOND, KeyCounts
from icestream.plan.windows.grid import Grid, Windows

#: up to this many optional windows, all combinations are tried
EXACT = 10
#: if that searches no more places than these
EXACT_PLACES = 500_000
#: starts times tiles that are searched for one window; divided among many optional windows
PLACES = 5_000
#: most factor windows that are considered
FACTORS = 24

Method = Literal["anew", "slide"]


@dataclass(frozen=True, slots=True)
class TileRun:
    """A number of adjacent tiles: windows of one kind, or panes if there is no source."""

    source: Windows | None
    count: int


@dataclass(frozen=True, slots=True)
class TileSteps:
    """The tiles that are added before a window is emitted, and those that are removed after.

    Tiles follow each other without gaps: `add` fills the window, or what enters it, up to its end;
    `remove` begins at the window's start.
    """

    add: tuple[TileRun, ...]
    remove: tuple[TileRun, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """How the windows of one kind are computed."""

    window: Windows
    method: Method
    #: steps of the windows that start at offset + i * slide: those at i modulo their number
    steps: tuple[TileSteps, ...]
    #: rows consolidated per second of event time
    rows: float
    #: False for a factor window
    wanted: bool

    @property
    def inputs(self) -> frozenset[Windows]:
        """Return the windows whose complete results are read."""
        parts = chain.from_iterable(chain(each.add, each.remove) for each in self.steps)
        return frozenset(part.source for part in parts if part.source is not None)

    def explain(self) -> str:
        ways = list(dict.fromkeys(_written(each) for each in self.steps))
        text = "; in turn with ".join(ways[:3]) + ("; ..." if len(ways) > 3 else "")
        how = "computed from" if self.method == "anew" else "sliding,"
        return f"{_name(self.window)}{'' if self.wanted else ' (factor)'}: {how} {text}"


@dataclass(frozen=True)
class Composition:
    """How a set of windows is computed; inputs come before the windows composed of them."""

    grid: Grid
    recipes: tuple[Recipe, ...]
    #: rows per second of event time: composed (including kept rows), with every window from scratch
    #: from panes, with every window sliding over panes
    rows: float
    rows_anew: float
    rows_sliding: float
    #: whether the search was complete, so that no other choice costs less
    exact: bool

    @cached_property
    def kept(self) -> frozenset[Windows]:
        """Return the windows whose rows are kept for others."""
        return frozenset(chain.from_iterable(recipe.inputs for recipe in self.recipes))

    def explain(self) -> str:
        hour = 3600
        lines = [
            f"panes of {format_interval(self.grid.pane)}; {self.rows * hour:,.0f} rows an hour, "
            f"{self.rows_anew * hour:,.0f} with each window computed from panes, "
            f"{self.rows_sliding * hour:,.0f} sliding over panes"
            + ("" if self.exact else "; the search was not complete")
        ]
        return "\n".join(lines + [f"  {recipe.explain()}" for recipe in self.recipes])


def tiles_of(upstream: Windows, window: Windows) -> int | None:
    """Return how many windows of `upstream` alone compose every one of `window`, or None."""
    aligned = (
        window.slide % upstream.slide == 0 == (window.offset - upstream.offset) % upstream.slide
    )
    count, rest = divmod(window.range, upstream.range)
    follow = count == 1 or upstream.range % upstream.slide == 0
    return count if aligned and rest == 0 and follow else None


def factor_windows(windows: Sequence[Windows], grid: Grid) -> tuple[Windows, ...]:
    """Return tumbling windows outside the query that several windows could be composed of."""
    found = {(math.gcd(w.range, w.slide), w.offset % math.gcd(w.range, w.slide)) for w in windows}
    fresh = set(found)
    while fresh and len(found) < FACTORS:
        fresh = {_common(one, other) for one in fresh for other in found} - found
        found |= fresh
    candidates = {Windows(length, length, at) for length, at in found if length > grid.pane}
    asked = {(w.range, w.slide, w.offset % w.slide) for w in windows}
    unasked = [w for w in candidates if (w.range, w.slide, w.offset) not in asked]
    return tuple(sorted(unasked, key=_rank)[-FACTORS:])


def compose(
    windows: Iterable[Windows],
    keys: KeyCounts,
    *,
    grid: Grid | None = None,
    invertible: bool = True,
    factors: bool = True,
    keeping: float = 0.0,
    sliding: bool = True,
) -> Composition:
    """Choose how a set of windows is computed from panes and from each other.

    Args:
        windows: the windows of the query.
        keys: rows of panes and windows by their length; call again when they have changed.
        grid: the panes; by default the longest that all windows consist of.
        invertible: whether every field can be subtracted.
        factors: whether to consider windows outside the query.
        keeping: the cost of keeping a row for others, in rows consolidated; 1 if it is written.
        sliding: whether overlapping windows may be composed of others; otherwise they are made of
            panes and are only tiles.
    """
    wanted = sorted(set(windows), key=_rank)
    if not wanted:
        msg = "there is no window to compose; give at least one"
        raise DefinitionError(msg)
    grid = _fitting(grid, wanted)
    optional = list(factor_windows(wanted, grid)) if factors else []
    always = frozenset[Windows]()
    if keeping > 0:
        optional += wanted
    else:
        always = frozenset(wanted)
    few = len(optional) <= EXACT
    places = PLACES if few else PLACES // len(optional)
    kitchen = _Kitchen(grid, keys, invertible, places, sliding=sliding)

    def cost(kept: frozenset[Windows]) -> float:
        made = sum(kitchen.recipe(w, kept).rows for w in kept.union(wanted))
        return made + keeping * sum(kitchen.produced(w) for w in kept)

    places = kitchen.places(wanted, optional)
    exact = few and places << len(optional) <= EXACT_PLACES
    kept = (_try_all if exact else _improve)(optional, always, cost)
    exact = exact and not kitchen.left_out
    recipes = _needed(wanted, [kitchen.recipe(w, kept) for w in kept.union(wanted)])
    used = frozenset(chain.from_iterable(recipe.inputs for recipe in recipes))
    return Composition(
        grid,
        recipes,
        rows=sum(r.rows for r in recipes) + keeping * sum(kitchen.produced(w) for w in used),
        rows_anew=sum(kitchen.from_panes(w, "anew") for w in wanted),
        rows_sliding=sum(kitchen.from_panes(w, "slide") for w in wanted),
        exact=exact,
    )


# -- one window ----------------------------------------------------------------------------------


#: rows and tiles up to an instant, then the last tile: its source and its start
_Reached = tuple[float, int, Windows | None, Micros]


class _Kitchen:
    """The cheapest recipe of a window for each set of kept windows; all in panes."""

    def __init__(
        self, grid: Grid, keys: KeyCounts, invertible: bool, places: int, *, sliding: bool
    ) -> None:
        self._grid = grid
        self._sliding = sliding
        self._keys = keys
        self._invertible = invertible
        self._pane_rows = keys.rows(grid.pane)
        self._limit = places
        #: whether an input was ignored because of that limit
        self.left_out = False
        self._known: dict[tuple[Windows, frozenset[Windows]], Recipe] = {}

    def produced(self, window: Windows) -> float:
        """Return the rows per second of the windows of a kind."""
        return self._keys.rows(window.range) * SECOND / window.slide

    def from_panes(self, window: Windows, method: Method) -> float:
        """Return the rows per second that a window consolidates without other windows."""
        reads = 2 if self._invertible else 3
        length = window.range if method == "anew" else reads * window.slide
        return length // self._grid.pane * self._pane_rows * SECOND / window.slide

    def places(self, wanted: Sequence[Windows], optional: Sequence[Windows]) -> int:
        """Return the approximate number of tiles that are searched to compute every window once."""
        everything = frozenset(wanted).union(optional)
        return sum(self._inputs(w, everything)[1] for w in everything)

    def recipe(self, window: Windows, kept: frozenset[Windows]) -> Recipe:
        """Return the cheapest way to compute a window from panes and kept windows."""
        inputs, _ = self._inputs(window, kept)
        key = (window, frozenset(inputs))
        if key not in self._known:
            self._known[key] = min(
                (self._made(window, inputs, method) for method in ("anew", "slide")),
                key=lambda recipe: recipe.rows,
            )
        return self._known[key]

    def _inputs(self, window: Windows, kept: frozenset[Windows]) -> tuple[list[Windows], int]:
        """Return the kept windows that can be tiles, and the places to search."""
        made = self._sliding or window.tumbles
        able = [w for w in kept if _rank(w) < _rank(window)] if made else []
        able.sort(key=lambda w: (math.lcm(w.slide, window.slide), -w.slide, _rank(w)))
        chosen: list[Windows] = []
        starts, tiles = 1, 2
        for each in able:
            more = math.lcm(starts * window.slide, each.slide) // window.slide
            longer = tiles + (window.range - each.range) // each.slide + 1
            if more * longer <= self._limit:
                chosen.append(each)
                starts, tiles = more, longer
            else:
                self.left_out = True
        return chosen, starts * tiles

    def _made(self, window: Windows, inputs: list[Windows], method: Method) -> Recipe:
        if method == "slide" and not self._invertible:
            panes = (TileRun(None, window.slide // self._grid.pane),)
            rows = self.from_panes(window, "slide")
            return Recipe(window, "slide", (TileSteps(panes, panes),), rows, wanted=True)
        steps, total = [], 0.0
        period = math.lcm(window.slide, *(each.slide for each in inputs))
        for start in range(window.offset, window.offset + period, window.slide):
            end = start + window.range
            if method == "anew":
                rows, add = self._tiling(start, end, inputs)
                remove: tuple[TileRun, ...] = ()
            else:
                rows, add = self._tiling(end - window.slide, end, inputs)
                leaving, remove = self._tiling(start, start + window.slide, inputs)
                rows += leaving
            steps.append(TileSteps(add, remove))
            total += rows
        return Recipe(window, method, _shortened(steps), total * SECOND / period, wanted=True)

    def _tiling(
        self, start: Micros, end: Micros, inputs: Sequence[Windows]
    ) -> tuple[float, tuple[TileRun, ...]]:
        """Return the cheapest sequence of tiles from `start` to `end`, and its rows."""
        ending: dict[Micros, list[tuple[float, Windows]]] = {end: []}
        for each in inputs:
            rows_each = self._keys.rows(each.range)
            first = start + (each.offset - start) % each.slide
            for at in range(first, end - each.range + 1, each.slide):
                ending.setdefault(at, [])
                ending.setdefault(at + each.range, []).append((rows_each, each))
        best: dict[Micros, _Reached] = {start: (0.0, 0, None, start)}
        before = start
        for at in sorted(ending.keys() - {start}):
            panes = (at - before) // self._grid.pane
            rows, tiles, _, _ = best[before]
            choice: _Reached = (rows + panes * self._pane_rows, tiles + panes, None, before)
            for rows_each, each in ending[at]:
                rows, tiles, _, _ = best[at - each.range]
                whole = rows + rows_each
                if (whole, tiles + 1) < choice[:2]:
                    choice = (whole, tiles + 1, each, at - each.range)
            best[at] = choice
            before = at
        return best[end][0], self._walk_back(best, start, end)

    def _walk_back(
        self, best: dict[Micros, _Reached], start: Micros, end: Micros
    ) -> tuple[TileRun, ...]:
        found = []
        while end > start:
            _, _, source, before = best[end]
            found.append(TileRun(source, 1 if source else (end - before) // self._grid.pane))
            end = before
        runs = groupby(reversed(found), key=lambda part: part.source)
        return tuple(TileRun(source, sum(part.count for part in run)) for source, run in runs)


# -- which windows are kept ----------------------------------------------------------------------

_Cost = Callable[[frozenset[Windows]], float]


def _try_all(
    optional: Sequence[Windows], always: frozenset[Windows], cost: _Cost
) -> frozenset[Windows]:
    """Return the cheapest combination; among equals the one with the fewest windows."""
    sizes = range(len(optional) + 1)
    every = (always.union(some) for size in sizes for some in combinations(optional, size))
    return min(every, key=cost)


def _improve(
    optional: Sequence[Windows], always: frozenset[Windows], cost: _Cost
) -> frozenset[Windows]:
    """Add or drop one window while that helps, starting from none and from all of them."""
    reached = []
    for kept in (always, always.union(optional)):
        current, rows = kept, cost(kept)
        while True:
            neighbours = [current ^ {each} for each in optional]
            nearest = min(neighbours, key=cost, default=current)
            if cost(nearest) >= rows:
                break
            current, rows = nearest, cost(nearest)
        reached.append(current)
    return min(reached, key=cost)


def _fitting(grid: Grid | None, wanted: Sequence[Windows]) -> Grid:
    longest = Grid.of(wanted)
    if grid is None:
        return longest
    if longest.pane % grid.pane or (longest.origin - grid.origin) % grid.pane:
        msg = (
            f"panes of {format_interval(grid.pane)} do not fill all the windows; take panes that "
            f"divide {format_interval(longest.pane)}"
        )
        raise DefinitionError(msg)
    return grid


def _needed(wanted: Sequence[Windows], recipes: Sequence[Recipe]) -> tuple[Recipe, ...]:
    """Return the recipes of wanted windows and of those they are composed of, inputs first."""
    by_window = {recipe.window: recipe for recipe in recipes}
    needed: set[Windows] = set()
    waiting = list(wanted)
    while waiting:
        window = waiting.pop()
        if window not in needed:
            needed.add(window)
            waiting += by_window[window].inputs
    asked = frozenset(wanted)
    ordered = [by_window[window] for window in sorted(needed, key=_rank)]
    return tuple(
        Recipe(r.window, r.method, r.steps, r.rows, wanted=r.window in asked) for r in ordered
    )


# -- text and numbers ---------------------------------------------------------------------------


def _rank(window: Windows) -> tuple[int, int, int]:
    """Return the order in which windows can be computed: tiles before the windows they fill."""
    return window.range, window.slide, window.offset


def _common(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return length and offset of the longest windows that fill windows of both kinds."""
    length = math.gcd(one[0], other[0], one[1] - other[1])
    return length, one[1] % length


def _shortened(steps: list[TileSteps]) -> tuple[TileSteps, ...]:
    """Return the shortest sequence that this one repeats."""
    count = len(steps)
    for length in range(1, count + 1):
        if count % length == 0 and steps == steps[:length] * (count // length):
            return tuple(steps[:length])
    return tuple(steps)


def _name(window: Windows) -> str:
    text = format_interval(window.range)
    if window.slide != window.range:
        text += f" every {format_interval(window.slide)}"
    return text + (f" from {format_interval(window.offset)}" if window.offset else "")


def _written(step: TileSteps) -> str:
    added, removed = (_listed(parts) for parts in (step.add, step.remove))
    return f"plus {added}, minus {removed}" if removed else added


def _listed(parts: Iterable[TileRun]) -> str:
    return " + ".join(
        f"{part.count} x {'pane' if part.source is None else _name(part.source)}" for part in parts
    )
