"""Window aggregates the slow, obvious way: dicts over events, and SQL over all of them at once.

Idea: `ObviousWindows` does what a query promises and nothing clever: every event is put into the
list of every window that is still open, and a window's list is reduced with Python's exact numbers
when the watermark reaches its end. `windows_by_sql` asks DuckDB, for streams without late events.

Both return rows as plain tuples: start and end of the window in microseconds, keys, answers.
`rows_of` turns a query's table into the same, `differences` tells what two sets disagree on.

Limits: DuckDB has its own ideas of NaN in variances and of averages of decimals (doubles).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

import duckdb
import pyarrow as pa

from icestream.core.times import MINUS_INFINITY, Micros
from icestream.operators.aggregates import Aggregate
from icestream.plan.nodes import SOURCE, TIME, Plan
from icestream.runtime.local import Splits

Row = tuple[Any, ...]

#: one object, so that a dict takes all NaN for one key
_NAN = math.nan


class ObviousWindows:
    """The rows that a query must emit, batch by batch."""

    def __init__(self, plan: Plan) -> None:
        """Start before the first batch."""
        self._plan = plan
        self._open: dict[tuple[Micros, Row], list[dict[str, Any]]] = {}
        self._seen: list[Micros | None] = [None] * len(plan.sources)
        #: no window that ends at or before it is open
        self.watermark: Micros = MINUS_INFINITY
        #: events that no window took
        self.late = 0

    def feed(self, splits: Splits) -> list[Row]:
        """Take one batch and return the rows of the windows it closes."""
        before = self.watermark
        for batch in (batch for split in splits for batch in split):
            times = batch.column(TIME).cast(pa.int64()).to_pylist()
            sources = batch.column(SOURCE).to_pylist()
            for time, source, event in zip(times, sources, batch.to_pylist(), strict=True):
                if time is not None:
                    self._take(time, source, event, before)
        reached = [
            MINUS_INFINITY if seen is None else seen // 1000 * 1000 - source.slack
            for seen, source in zip(self._seen, self._plan.sources, strict=True)
        ]
        return self._close_until(max(before, min(reached)))

    def flush(self) -> list[Row]:
        """Close every window and return its rows."""
        latest = max((seen for seen in self._seen if seen is not None), default=None)
        if latest is None:
            return []
        last = max(_starts(self._plan, latest))
        return self._close_until(max(self.watermark, last + self._plan.windows.range))

    def _take(self, time: Micros, source: int, event: dict[str, Any], before: Micros) -> None:
        seen = self._seen[source]
        self._seen[source] = time if seen is None else max(seen, time)
        length = self._plan.windows.range
        starts = [start for start in _starts(self._plan, time) if start + length > before]
        self.late += not starts
        for start in starts:
            for key in _keys(self._plan, event):
                self._open.setdefault((start, key), []).append(event)

    def _close_until(self, watermark: Micros) -> list[Row]:
        self.watermark = watermark
        length = self._plan.windows.range
        closed = [each for each in self._open if each[0] + length <= watermark]
        return [self._row(start, key, self._open.pop((start, key))) for start, key in closed]

    def _row(self, start: Micros, key: Row, events: list[dict[str, Any]]) -> Row:
        types = self._plan.spec.types
        answers = [_answer(each, events, types) for each in self._plan.aggregates]
        return (start, start + self._plan.windows.range, *key, *answers)


def _starts(plan: Plan, time: Micros) -> Iterator[Micros]:
    """Yield the starts of the windows that hold an instant, latest first."""
    windows = plan.windows
    start = time - (time - windows.offset) % windows.slide
    while start > time - windows.range:
        yield start
        start -= windows.slide


def _keys(plan: Plan, event: dict[str, Any]) -> Iterator[Row]:
    values = tuple(_plain(event[f"k{i}"]) for i in range(len(plan.keys)))
    if plan.grouping_sets is None:
        yield values
        return
    for chosen in plan.grouping_sets:
        left_out = [i not in chosen for i in range(len(values))]
        masked = [None if out else v for v, out in zip(values, left_out, strict=True)]
        yield (*masked, int("".join("01"[out] for out in left_out) or "0", 2))


def _plain(value: Any) -> Any:
    """Make keys that Spark takes for equal equal for a dict."""
    if isinstance(value, float):
        return _NAN if math.isnan(value) else value + 0.0
    return value


def _answer(
    aggregate: Aggregate, events: list[dict[str, Any]], types: dict[str, pa.DataType]
) -> Any:
    if aggregate.column is None:
        return len(events)
    values = [v for event in events if (v := event[aggregate.column]) is not None]
    if aggregate.function == "count":
        return len(values)
    if not values:
        return None
    if aggregate.function in ("min", "max"):
        choose = min if aggregate.function == "min" else max
        return choose(values, key=_rank)
    if aggregate.function in ("sum", "avg"):
        total = _total(values)
        return total if aggregate.function == "sum" else _mean(total, len(values), aggregate, types)
    return _moment(aggregate.function, values)


def _rank(value: Any) -> tuple[bool, Any]:
    """Order values as Spark does: NaN is the greatest float."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return (is_nan, 0 if is_nan else value)


def _total(values: list[Any]) -> Any:
    if isinstance(values[0], Decimal):
        return sum((Fraction(v) for v in values), Fraction(0))
    if isinstance(values[0], int):
        return sum(values)
    infinities = {v for v in values if math.isinf(v)}
    if any(math.isnan(v) for v in values) or len(infinities) == 2:
        return math.nan
    return infinities.pop() if infinities else math.fsum(values)


def _mean(total: Any, count: int, aggregate: Aggregate, types: dict[str, pa.DataType]) -> Any:
    if not isinstance(total, Fraction):
        return total / count
    scale = aggregate.result_type(types).scale
    places = Context(prec=60, rounding=ROUND_HALF_UP)
    mean = total / count
    exact = places.divide(Decimal(mean.numerator), Decimal(mean.denominator))
    return Fraction(exact.quantize(Decimal(1).scaleb(-scale), context=places))


def _moment(function: str, values: list[Any]) -> float | None:
    sample = function.endswith("samp")
    if sample and len(values) < 2:
        return None
    if not all(math.isfinite(v) for v in values):
        return math.nan
    exact = [Fraction(float(v)) for v in values]
    mean = sum(exact, Fraction(0)) / len(exact)
    spread = sum(((v - mean) ** 2 for v in exact), Fraction(0))
    variance = float(spread / (len(exact) - 1 if sample else len(exact)))
    return math.sqrt(variance) if function.startswith("stddev") else variance


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
    """Tell what two sets of rows disagree on; `keys` is the number of key columns.

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
    """Tell whether two lists of rows are equal to the bit, in any order."""
    return Counter(map(repr, found)) == Counter(map(repr, expected))


def _by_key(rows: Iterable[Row], keys: int) -> dict[Row, list[Row]]:
    grouped: dict[Row, list[Row]] = {}
    for row in rows:
        grouped.setdefault(tuple(_plain(value) for value in row[: 2 + keys]), []).append(row)
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
    if _plain(a) == _plain(b):
        return type(a) is type(b) or not isinstance(a, float | bool)
    return False


def windows_by_sql(plan: Plan, batches: Sequence[pa.RecordBatch]) -> list[Row]:
    """Return the rows of all windows of a stream without late events, computed by DuckDB."""
    events = pa.Table.from_batches(batches, plan.batch_schema)
    windows, types = plan.windows, plan.spec.types
    keys = [f"k{i}" for i in range(len(plan.keys))]
    answers = [_sql(each, types) for each in plan.aggregates]
    chosen: list[str] = []
    if plan.grouping_sets is None:
        grouping = ", ".join(["__start", *keys])
    else:
        sets = (", ".join(["__start", *(keys[i] for i in each)]) for each in plan.grouping_sets)
        grouping = f"GROUPING SETS ({', '.join(f'({each})' for each in sets)})"
        chosen = [f"grouping({', '.join(keys)})"]
    query = f"""
        WITH e AS (SELECT *, epoch_us({TIME}) AS __at FROM events),
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


def _sql(aggregate: Aggregate, types: dict[str, pa.DataType]) -> str:
    if aggregate.column is None:
        return "count(*)"
    call = f'{aggregate.function}("{aggregate.column}")'
    kind = aggregate.result_type(types)
    if aggregate.function == "sum" and pa.types.is_decimal(kind):
        return f"CAST({call} AS DECIMAL({kind.precision}, {kind.scale}))"
    if aggregate.function == "sum" and pa.types.is_integer(kind):
        return f"CAST({call} AS BIGINT)"
    return call
