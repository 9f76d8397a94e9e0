"""Window aggregates, the slow and obvious way: dicts over events, and SQL over all of them.

Idea: `ObviousWindows` does what a query promises and nothing clever: every event is added to the
list of every window that is still open, and a window's list is reduced with Python's exact numbers
when the watermark reaches its end. `windows_by_sql` uses DuckDB, for streams without late events.

Both return rows as plain tuples: start and end of the window in microseconds, keys, answers.
`rows_of` turns a query's table into the same, `differences` lists where two sets disagree.

Limits: DuckDB treats NaN in variances and averages of decimals (doubles) differently.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import duckdb
import pyarrow as pa

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.plan.nodes.queries import TIME, Plan, View
from icestream.plan.windows.grid import Cumulative, Windows
from tests.oracles.answers import answer, sql_of
from tests.oracles.arrivals import ArrivalOracle, Row

#: one object, so that all NaN are one key of a dict
_NAN = math.nan


class ObviousWindows(ArrivalOracle):
    """The rows that a view of windows on a grid must emit, batch by batch."""

    def __init__(self, plan: Plan, view: int = 0) -> None:
        """Start before the first batch."""
        super().__init__(plan)
        self._view = plan.views[view]
        self._open: dict[tuple[Micros, Micros], dict[Row, list[dict[str, Any]]]] = {}
        #: in update mode, the groups of the window closed last
        self._before: dict[Row, list[dict[str, Any]]] = {}
        self._last: tuple[Micros, Micros] = (MINUS_INFINITY, MINUS_INFINITY)

    def _reached(self, before: Micros) -> Micros:
        reached = [
            MINUS_INFINITY if seen is None else seen // 1000 * 1000 - source.slack
            for seen, source in zip(self._seen, self._plan.sources, strict=True)
        ]
        return max(before, min(reached))

    def _end(self, latest: Micros) -> Micros:
        # a view that tells updates is not emptied for the sake of longer windows beside it
        views = [self._view] if self._view.mode == "changes" else self._plan.views
        return max(
            end
            for view in views
            for _, end in windows_of(view.windows, latest)  # type: ignore[arg-type]
        )

    def _take(self, time: Micros, event: dict[str, Any], before: Micros) -> None:
        mine = [each for each in windows_of(self._view.windows, time) if each[1] > before]  # type: ignore[arg-type]
        self.late += not mine
        for window in mine:
            for key in _keys(self._plan, self._view, event):
                self._open.setdefault(window, {}).setdefault(key, []).append(event)

    def _settle(self, watermark: Micros) -> list[Row]:
        self.watermark = watermark
        rows: list[Row] = []
        while (window := self._next(watermark)) is not None:
            groups = self._open.pop(window, {})
            if self._view.mode == "changes":
                rows += self._changes(window, groups)
            else:
                rows += [self._row(window, key, events) for key, events in groups.items()]
            self._last = window
        return rows

    def _next(self, watermark: Micros) -> tuple[Micros, Micros] | None:
        """Return the next window to close: one with events or, in update mode, the one after it."""
        choices = list(self._open)
        if self._before:
            choices.append(_following(self._view.windows, *self._last))  # type: ignore[arg-type]
        closed = [window for window in choices if window[1] <= watermark]
        return min(closed, key=lambda window: window[1], default=None)

    def _changes(
        self, window: tuple[Micros, Micros], groups: dict[Row, list[dict[str, Any]]]
    ) -> list[Row]:
        before, self._before = self._before, groups
        return [
            self._row(window, key, groups.get(key, []))
            for key in dict.fromkeys([*before, *groups])
            if [id(e) for e in before.get(key, [])] != [id(e) for e in groups.get(key, [])]
        ]

    def _row(self, window: tuple[Micros, Micros], key: Row, events: list[dict[str, Any]]) -> Row:
        answers = [answer(each, events, self._plan.types) for each in self._view.aggregates]
        return (*window, *key, *answers)


def windows_of(windows: Windows | Cumulative, time: Micros) -> Iterator[tuple[Micros, Micros]]:
    """Yield start and end of the windows that contain a time, latest first."""
    if isinstance(windows, Cumulative):
        start = time - (time - windows.offset) % windows.size
        end = start + windows.size
        while end > time:
            yield start, end
            end -= windows.step
        return
    start = time - (time - windows.offset) % windows.slide
    while start > time - windows.range:
        yield start, start + windows.range
        start -= windows.slide


def _following(windows: Windows | Cumulative, start: Micros, end: Micros) -> tuple[Micros, Micros]:
    """Return the window after another."""
    if isinstance(windows, Windows):
        return start + windows.slide, end + windows.slide
    if end == start + windows.size:
        return end, end + windows.step
    return start, end + windows.step


def _keys(plan: Plan, view: View, event: dict[str, Any]) -> Iterator[Row]:
    values = tuple(plain(event[f"k{i}"]) for i in range(len(plan.keys)))
    for chosen in view.groupings:
        masked = tuple(values[i] if i in chosen else None for i in view.keys)
        yield (*masked, view.grouping_id(chosen)) if view.tells_grouping else masked


def plain(value: Any) -> Any:
    """Map keys that are equal for Spark to equal dict keys."""
    if isinstance(value, float):
        return _NAN if math.isnan(value) else value + 0.0
    return tuple(value.items()) if isinstance(value, dict) else value


def rows_of(tables: pa.Table | Iterable[pa.Table]) -> list[Row]:
    """Return the rows of result tables as plain tuples."""
    rows: list[Row] = []
    for table in [tables] if isinstance(tables, pa.Table) else tables:
        flat = table.flatten()
        columns = [
            column.cast(pa.int64()).to_pylist() if place < 2 else column.to_pylist()
            for place, column in enumerate(flat.columns)
        ]
        rows.extend(zip(*columns, strict=True))
    return rows


def differences(
    found: Iterable[Row], expected: Iterable[Row], keys: int, *, tolerance: float = 1e-12
) -> list[str]:
    """List where two sets of rows disagree; `keys` is the number of key columns.

    Floats agree within `tolerance`, relative or absolute; everything else must be equal.
    """
    ours, theirs = _by_key(found, keys), _by_key(expected, keys)
    wrong = [f"twice: {key}" for key, times in ours.items() if len(times) > 1]
    wrong += [f"missing: {theirs[key][0]}" for key in theirs.keys() - ours.keys()]
    wrong += [f"unexpected: {ours[key][0]}" for key in ours.keys() - theirs.keys()]
    for key in ours.keys() & theirs.keys():
        a, b = ours[key][0], theirs[key][0]
        if len(a) != len(b) or not all(_agree(x, y, tolerance) for x, y in zip(a, b, strict=True)):
            wrong.append(f"found {a}, expected {b}")
    return wrong


def same_multiset(found: Iterable[Row], expected: Iterable[Row]) -> bool:
    """Return whether two lists of rows are equal to the bit, in any order."""
    return Counter(map(repr, found)) == Counter(map(repr, expected))


def _by_key(rows: Iterable[Row], keys: int) -> dict[Row, list[Row]]:
    grouped: dict[Row, list[Row]] = {}
    for row in rows:
        grouped.setdefault(tuple(plain(value) for value in row[: 2 + keys]), []).append(row)
    return grouped


def _agree(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, float) and isinstance(b, float | Fraction):
        b = float(b)
        same = a == b or (math.isnan(a) and math.isnan(b))
        return same or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(a, Decimal) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(a, Decimal) and isinstance(b, Fraction):
        return Fraction(a) == b
    if plain(a) == plain(b):
        return type(a) is type(b) or not isinstance(a, float | bool)
    return False


def windows_by_sql(plan: Plan, batches: Sequence[pa.RecordBatch]) -> list[Row]:
    """Return the rows of all windows of a stream without late events, computed by DuckDB."""
    events = pa.Table.from_batches(batches, plan.batch_schema)
    view, types = plan.views[0], plan.types
    windows = view.windows
    assert isinstance(windows, Windows)
    keys = [f"k{i}" for i in range(len(plan.keys))]
    answers = [sql_of(each, types) for each in view.aggregates]
    chosen: list[str] = []
    if not view.tells_grouping:
        grouping = ", ".join(["__start", *keys])
    else:
        sets = (", ".join(["__start", *(keys[i] for i in each)]) for each in view.groupings)
        grouping = f"GROUPING SETS ({', '.join(f'({each})' for each in sets)})"
        chosen = [f"grouping({', '.join(keys)})"]
    query = f"""
        WITH e AS (SELECT *, epoch_us({TIME}) AS __at, row_number() OVER () AS __row FROM events),
        w AS (
            SELECT e.*, __at - ((__at - {windows.offset}) % {windows.slide} + {windows.slide})
                % {windows.slide} - i * {windows.slide} AS __start
            FROM e, range({-(-windows.range // windows.slide)}) r(i)
        )
        SELECT {", ".join(["__start", f"__start + {windows.range}", *keys, *chosen, *answers])}
        FROM w WHERE __start > __at - {windows.range} GROUP BY {grouping}
    """
    with duckdb.connect() as connection:
        connection.register("events", events)
        table = connection.sql(query).to_arrow_table()
    columns = [column.to_pylist() for column in table.columns]
    return list(zip(*columns, strict=True))
