"""How the windows of a job are computed: each separately, or from partials that windows share.

Idea: a tuple that is in W windows can be folded W times, or once, into a partial from which W
windows are merged. The first costs W calls per tuple, the second one call and the merging of rows,
which composing windows of each other keeps few. Both are counted in rows per second.

    each      rate x W
    partials  rate + rows merged

Invariant: results do not depend on the choice
(`test_parity_partials_and_each_give_equal_results`).

References: Madsen, Zhou, Su (2016), sections 4.2 and 6.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from icestream.core.errors import DefinitionError
from icestream.operators.jobs.consolidate import SpanTiling
from icestream.operators.jobs.spans import named
from icestream.plan.grid.compose import Composition, Recipe, TileSteps, compose, tiles_of
from icestream.plan.grid.cost import SECOND, KeyCounts
from icestream.plan.windows.grid import Grid, Windows

SHARING = ("auto", "partials", "each")


@dataclass(frozen=True)
class JobStatistics:
    """Measurements of the tuples in windows.

    Examples:
        >>> ice.JobStatistics(rate=50_000).rate
        50000
    """

    #: tuples per second of event time
    rate: float = 1000.0
    #: number of keys by length of a stretch
    keys: KeyCounts = field(default_factory=lambda: KeyCounts(((1, 100.0),)))


@dataclass(frozen=True)
class Chosen:
    """How windows are computed."""

    #: windows that compute folds tuples into
    folded: tuple[Windows, ...]
    tilings: tuple[SpanTiling, ...]
    because: str


def chosen_windows(
    windows: Sequence[Windows],
    statistics: JobStatistics,
    *,
    sharing: str = "auto",
    composable: bool = True,
    divisible: bool = True,
) -> Chosen:
    """Choose what is folded in a job and how its windows are composed of it.

    Args:
        windows: the windows of the query.
        statistics: measurements of the tuples.
        sharing: `partials`, `each`, or `auto` to choose by cost.
        composable: whether merged windows can be merged again.
        divisible: whether a tuple counts in only one partial; if not, each window is folded.
    """
    if sharing not in SHARING:
        msg = f"sharing must be one of {', '.join(SHARING)}; got {sharing!r}"
        raise DefinitionError(msg)
    if sharing == "partials" and not divisible:
        msg = "tuples that count in every window they touch cannot be shared: use sharing='each'"
        raise DefinitionError(msg)
    grid = Grid.of(windows)
    pane = Windows(grid.pane, grid.pane, grid.origin % grid.pane)
    tilings, rows = tilings_of(windows, (pane,), statistics.keys, composable=composable)
    each = statistics.rate * sum(w.range / w.slide for w in windows)
    shared = statistics.rate + rows
    counted = f"{shared:,.0f} rows a second with partials, {each:,.0f} without"
    if sharing == "each" or not divisible or (sharing == "auto" and each <= shared):
        whole = tuple(SpanTiling(w, (((w.range, 0),),)) for w in windows)
        return Chosen(tuple(windows), whole, f"each window by itself: {counted}")
    return Chosen((pane,), tilings, f"partials of {named(pane)}: {counted}")


def tilings_of(
    windows: Sequence[Windows],
    given: Sequence[Windows],
    keys: KeyCounts,
    *,
    composable: bool = True,
) -> tuple[tuple[SpanTiling, ...], float]:
    """Return how a job's windows are composed of partials that are windows, and the rate."""
    if composable and len(given) == 1 and given[0].tumbles:
        return _composed(windows, given[0], keys)
    tilings: list[SpanTiling] = []
    rows = 0.0
    for window in sorted(windows, key=lambda each: each.range):
        options = list(given) + [each.window for each in tilings if composable]
        tiling, more = _uniform(window, options, keys)
        tilings.append(tiling)
        rows += more
    return tuple(tilings), rows


def _composed(
    windows: Sequence[Windows], pane: Windows, keys: KeyCounts
) -> tuple[tuple[SpanTiling, ...], float]:
    """Compose windows of partials that do not overlap, and of each other."""
    if any(tiles_of(pane, window) is None for window in windows):
        raise _unfilled(windows, [pane])
    grid = Grid(pane.range, pane.offset)
    composition = compose(windows, keys, grid=grid, invertible=False, factors=False)
    tilings, rows = [], 0.0
    for recipe in composition.recipes:
        if recipe.window == pane:
            tilings.append(SpanTiling(pane, (((pane.range, 0),),)))
            rows += recipe.rows
        elif recipe.method == "anew":
            tilings.append(SpanTiling(recipe.window, _tiles(recipe, composition), recipe.wanted))
            rows += recipe.rows
        else:
            tiling, more = _uniform(recipe.window, [pane, *(t.window for t in tilings)], keys)
            tilings.append(tiling)
            rows += more
    return tuple(tilings), rows


def _tiles(recipe: Recipe, composition: Composition) -> tuple[tuple[tuple[int, int], ...], ...]:
    return tuple(_placed(step, composition.grid.pane) for step in recipe.steps)


def _placed(step: TileSteps, pane: int) -> tuple[tuple[int, int], ...]:
    """Return length and position of every tile of a window."""
    placed, at = [], 0
    for part in step.add:
        length = pane if part.source is None else part.source.range
        for _ in range(part.count):
            placed.append((length, at))
            at += length
    return tuple(placed)


def _uniform(
    window: Windows, options: Sequence[Windows], keys: KeyCounts
) -> tuple[SpanTiling, float]:
    """Return the cheapest way to fill a window with windows of one kind."""
    ways = [
        (count * keys.rows(each.range), each.range, count)
        for each in options
        if (count := tiles_of(each, window)) is not None
    ]
    if not ways:
        raise _unfilled([window], options)
    rows, length, count = min(ways)
    tiles = tuple((length, place * length) for place in range(count))
    return SpanTiling(window, (tiles,)), rows * SECOND / window.slide


def _unfilled(windows: Sequence[Windows], given: Sequence[Windows]) -> DefinitionError:
    asked = ", ".join(named(each) for each in windows)
    names = ", ".join(named(each) for each in given)
    return DefinitionError(
        f"windows of {asked} cannot be filled by partials of {names}: choose partials whose length "
        "divides the length and the frequency of every window"
    )
