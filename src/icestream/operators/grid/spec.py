"""What windows on a grid compute, and which of them share what.

Idea: views with equal windows and mode form a *family* and share running rows; all families share
the panes. If windows are composed of other windows' rows, the spec also defines in which order
families advance, which of them pass rows on, and which families no view asked for.

Invariants:
1. A family comes after those it is composed of (`test_families_come_after_those_they_are_made_of`).
2. Views that share windows emit what they emit alone
   (`test_oracle_views_that_share_windows_equal_views_alone`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.folding.fields import Layout, SlidingLayout
from icestream.operators.grid.composed_windows import FROM_PANES, PaneTiling, Tiled
from icestream.operators.grid.emission import WindowView
from icestream.plan.windows.grid import Cumulative, Grid, Windows, WindowSequence
from icestream.state.keys import KeyCodec


@dataclass(frozen=True)
class WindowSpec:
    """The window aggregates of a plan, with the types of their inputs."""

    views: tuple[WindowView, ...]
    keys: pa.Schema
    inputs: pa.Schema
    #: windows composed of others, and windows added only as tiles
    tiled: tuple[Tiled, ...] = ()

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in self.inputs}

    @cached_property
    def codec(self) -> KeyCodec:
        return KeyCodec(self.keys)

    @cached_property
    def layout(self) -> Layout:
        """Return the fields that all aggregates need together."""
        return Layout.of(
            field
            for view in self.views
            for aggregate in view.aggregates
            for field in aggregate.fields(self.types)
        )

    @cached_property
    def grid(self) -> Grid:
        """Return the panes that all windows are composed of."""
        return Grid.of(view.windows for view in self.views)

    @cached_property
    def families(self) -> tuple[tuple[WindowView, ...], ...]:
        """Return the views that share running rows: those of equal windows and mode.

        Windows that are only tiles of others come last, without views.
        """
        families: dict[tuple[Windows | Cumulative, bool], list[WindowView]] = {}
        for view in self.views:
            families.setdefault((view.windows, view.updates), []).append(view)
        return (*map(tuple, families.values()), *(() for _ in self._factors))

    @cached_property
    def windows(self) -> tuple[Windows | Cumulative, ...]:
        return (*(views[0].windows for views in self.families if views), *self._factors)

    @cached_property
    def courses(self) -> tuple[WindowSequence, ...]:
        return tuple(windows.on(self.grid) for windows in self.windows)

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Return the layout of the running rows of each family."""
        fields = self.layout.fields
        return tuple(
            Layout(fields) if course.tumbles else SlidingLayout(fields) for course in self.courses
        )

    @cached_property
    def tilings(self) -> dict[int, PaneTiling]:
        """Return the tilings of the families that are composed of others."""
        first: dict[Windows | Cumulative, int] = {}
        for number in sorted(range(len(self.families)), key=self.updates):
            first.setdefault(self.windows[number], number)
        return {
            number: PaneTiling(tiled, self.grid, first)
            for tiled in self.tiled
            for number, windows in enumerate(self.windows)
            if windows == tiled.window and tiled.sources
        }

    @cached_property
    def handing_on(self) -> frozenset[int]:
        """Return the families that others are composed of."""
        sources = (source for tiling in self.tilings.values() for source in tiling.sources)
        return frozenset(sources) - {FROM_PANES}

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return the families in an order in which each follows those it is composed of."""

        def size(number: int) -> tuple[int, int]:
            windows = self.windows[number]
            return windows.range, windows.slide

        return tuple(sorted(range(len(self.families)), key=size))

    def updates(self, number: int) -> bool:
        """Return whether a family emits only the groups that changed."""
        return any(view.updates for view in self.families[number])

    @cached_property
    def on_panes(self) -> tuple[WindowSequence, ...]:
        """Return the window sequences of the families that panes enter."""
        return tuple(
            course
            for number, course in enumerate(self.courses)
            if number not in self.tilings or FROM_PANES in self.tilings[number].sources
        )

    @cached_property
    def _factors(self) -> tuple[Windows, ...]:
        asked = {view.windows for view in self.views}
        return tuple(tiled.window for tiled in self.tiled if tiled.window not in asked)

    def leaves(self, before: Micros, watermark: Micros) -> list[tuple[Micros, Micros]]:
        """Return, for each family, the time span to read because it leaves with a watermark.

        Nothing is read if all of a window leaves.
        """
        return [
            (MINUS_INFINITY, MINUS_INFINITY)
            if course.tumbles
            else (
                MINUS_INFINITY
                if before == MINUS_INFINITY
                else self.grid.instant(course.first_open(before)),
                self.grid.instant(course.first_open(watermark)),
            )
            for course in self.courses
        ]
