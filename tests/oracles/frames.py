"""Windows that move with events, the slow and obvious way: every window is computed anew.

Idea: `ObviousFrames` stores every event that is not late, in the order of (time, arrival). For a
watermark it goes through the events before it and reduces, for each row that the frame shows, the
list of events in the window, without rows returned before. `frames_by_sql` uses DuckDB's window
functions, for frames with a row per event of each group and streams without late events.

Rows are plain tuples: time in microseconds, number among the rows of that time and group, keys,
answers. `frame_rows` turns a query's table into the same; `oracles.differences` compares them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from icestream.core.times import Micros
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.object_aggregates.functions import needs_objects
from icestream.plan.nodes.queries import TIME, Plan
from icestream.plan.windows.frame import Frame, RowsSlide
from tests.oracles.answers import answer
from tests.oracles.arrivals import ArrivalOracle, Row
from tests.oracles.grid import plain
from tests.oracles.object_aggregates import obvious_answer

#: more events than any test has at one time
_TIES = 4096


@dataclass(frozen=True)
class _Event:
    time: Micros
    arrival: int
    key: Row
    values: dict[str, Any]


#: time, key, and the events up to there
_Shown = tuple[Micros, Row, list[_Event]]


class ObviousFrames(ArrivalOracle):
    """The rows that a view of a frame must emit, batch by batch."""

    def __init__(self, plan: Plan) -> None:
        """Start before the first batch."""
        super().__init__(plan)
        (self._view,) = plan.views
        assert isinstance(self._view.windows, Frame)
        self._frame = self._view.windows
        #: events of each grouping, and how many of its rows were returned
        self._events: list[list[_Event]] = [[] for _ in self._view.groupings]
        self._returned = [0 for _ in self._view.groupings]

    def _end(self, latest: Micros) -> Micros:
        return self._frame.settled_by(latest)

    def _take(self, time: Micros, event: dict[str, Any], before: Micros) -> None:
        if time < before:
            self.late += 1
            return
        for events, grouping in zip(self._events, self._view.groupings, strict=True):
            key = [plain(event[f"k{i}"]) if i in grouping else None for i in self._view.keys]
            ids = [self._view.grouping_id(grouping)] if self._view.tells_grouping else []
            events.append(_Event(time, self._arrived, (*key, *ids), event))

    def _settle(self, watermark: Micros) -> list[Row]:
        self.watermark = watermark
        rows: list[Row] = []
        for number, events in enumerate(self._events):
            settled = [each for each in events if each.time < watermark]
            settled.sort(key=lambda each: (each.time, each.arrival))
            shown = list(self._shown(settled, watermark))
            rows += [self._row(*each) for each in shown[self._returned[number] :]]
            self._returned[number] = len(shown)
        return _numbered(rows, len(self._view.keys) + self._view.tells_grouping)

    def _shown(self, events: list[_Event], watermark: Micros) -> Iterator[_Shown]:
        """Yield the rows shown for sorted events: time, key, events up to there."""
        slide, by_key = self._frame.slide, self._frame.partition == "key"
        if isinstance(slide, int):
            yield from self._at_instants(events, slide, watermark)
            return
        every = 1 if slide is None else slide.rows
        counts: Counter[Row] = Counter()
        for number, event in enumerate(events, 1):
            counts[event.key] += 1
            if slide is None or by_key:
                if counts[event.key] % every == 0:
                    yield event.time, event.key, events[:number]
            elif number % every == 0:
                yield from self._all(event.time, events[:number])

    def _at_instants(
        self, events: list[_Event], slide: Micros, watermark: Micros
    ) -> Iterator[_Shown]:
        for instant in sorted({self._frame.due(event.time) for event in events}):
            if instant > watermark:
                return
            past = [event for event in events if event.time < instant]
            if self._frame.partition == "stream":
                yield from self._all(instant, past)
                continue
            for key in dict.fromkeys(e.key for e in past if e.time >= instant - slide):
                yield instant, key, [event for event in past if event.key == key]

    def _all(self, instant: Micros, past: list[_Event]) -> Iterator[_Shown]:
        for key in dict.fromkeys(event.key for event in self._window(past)):
            yield instant, key, past

    def _window(self, past: list[_Event]) -> list[_Event]:
        """Return the events in the window that ends with the last of `past`."""
        if self._frame.range is not None:
            return [each for each in past if each.time > past[-1].time - self._frame.range]
        if self._frame.partition == "key":
            past = [each for each in past if each.key == past[-1].key]
        return past[-self._frame.reach :]

    def _row(self, instant: Micros, key: Row, past: list[_Event]) -> Row:
        window = (each for each in self._window(past) if each.key == key)
        events = [each.values for each in sorted(window, key=lambda each: each.arrival)]
        types = self._plan.types
        answers = [
            obvious_answer(each, events)
            if needs_objects(each, types)
            else answer(each, events, types)
            for each in self._view.aggregates
        ]
        return (instant, *key, *answers)


def frame_rows(table: pa.Table, keys: int) -> list[Row]:
    """Return the rows of a result table, with `keys` key columns, as plain tuples."""
    columns = [table.column(0).cast(pa.int64()), *table.columns[1:]]
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return _numbered(rows, keys)


def frames_by_sql(plan: Plan, batches: Sequence[pa.RecordBatch]) -> list[Row]:
    """Return the rows of a frame with a row per event, by DuckDB's window functions.

    A range is one of places that break ties: `_TIES` times the time, plus the place among
    those of that time.
    """
    (view,) = plan.views
    frame = view.windows
    assert isinstance(frame, Frame)
    assert not isinstance(frame.slide, int | RowsSlide)
    keys = [f"k{i}" for i in view.keys]
    reach = f"ROWS BETWEEN {frame.reach - 1} PRECEDING AND CURRENT ROW"
    if frame.range is not None:
        reach = f"RANGE BETWEEN {(frame.range - 1) * _TIES} + __tie PRECEDING AND CURRENT ROW"
    answers = ", ".join(_sql_over(each, plan) for each in view.aggregates)
    partition = f"PARTITION BY {', '.join(keys)}" if keys else ""
    query = f"""
        WITH e AS (SELECT *, epoch_us({TIME}) AS __at FROM events),
        t AS (
            SELECT *, row_number() OVER (PARTITION BY __at ORDER BY __row) - 1 AS __tie FROM e
        ),
        p AS (SELECT *, __at * {_TIES} + __tie AS __place FROM t)
        SELECT {", ".join(["__at", *keys])}, {answers} FROM p
        WINDOW w AS ({partition} ORDER BY __place {reach}) ORDER BY __place
    """
    events = pa.Table.from_batches(batches, plan.batch_schema)
    numbered = events.append_column("__row", pa.array(range(events.num_rows), pa.int64()))
    with duckdb.connect() as connection:
        connection.register("events", numbered)
        table = connection.sql(query).to_arrow_table()
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return _numbered(rows, len(keys))


def _sql_over(aggregate: Aggregate, plan: Plan) -> str:
    """Return a function of one column over the window `w` as an expression of DuckDB."""
    if aggregate.column is None:
        return "count(*) OVER w"
    call = f'{aggregate.function}("{aggregate.column}") OVER w'
    whole = aggregate.result_type(plan.types) == pa.int64()
    return f"CAST({call} AS BIGINT)" if whole else call


def _numbered(rows: Iterable[Row], keys: int) -> list[Row]:
    """Insert after the time of each row its number among those of that time and group."""
    seen: Counter[str] = Counter()
    numbered = []
    for row in rows:
        place = repr(tuple(map(plain, row[: 1 + keys])))
        numbered.append((row[0], seen[place], *row[1:]))
        seen[place] += 1
    return numbered
