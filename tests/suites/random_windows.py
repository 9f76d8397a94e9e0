"""Random queries of windows over random events, and their rows by slow and obvious versions.

Idea: a seed draws a *case*: events in the order of their arrival, in parts, and a plan with up to
three views of any kind of windows, keys and aggregates. How parts become batches, and what happens
between them (restarts, lost disks, another zone), is drawn by whoever runs the case. The oracles
get the same batches, so late events, several sources and updates are compared too.

Invariant: the same seed draws the same case (`test_the_same_seed_draws_the_same_case`).
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from icestream.core.times import Micros
from icestream.operators.aggregates.aggregate import Aggregate, applicable
from icestream.operators.object_aggregates.functions import needs_objects
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.features import FeatureCall, rows_at_slides, with_features
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import Plan, Source, View, WindowKind
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session
from tests.fixtures.dataflow_plans import PlanStream
from tests.oracles.arrivals import ArrivalOracle, Row
from tests.oracles.frames import ObviousFrames, frame_rows
from tests.oracles.grid import differences, plain, rows_of
from tests.oracles.object_aggregates import ObviousObjects, settled
from tests.oracles.sessions import ObviousSessions

SECOND: Micros = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
SPAN = 3 * HOUR
#: two hours before clocks change in New York, in spring and autumn, and a day before 1970
STARTS = tuple(
    int(dt.datetime.fromisoformat(f"{each}Z").timestamp()) * SECOND
    for each in (
        "2024-03-10T00:30",
        "2024-03-10T05:30",
        "2024-11-03T04:30",
        "1969-12-31T22:59:59",
    )
)
INSTANT = pa.timestamp("us", "UTC")
KEYS = pa.schema(
    [("k", pa.int64()), ("name", pa.string()), ("f", pa.float64()), ("day", pa.date32())]
)
WORDS = pa.schema(
    [
        ("n", pa.int64()),
        ("i", pa.int32()),
        ("s", pa.int16()),
        ("v", pa.float64()),
        ("w", pa.float32()),
        ("price", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(28, 3)),
        ("at", INSTANT),
        ("flag", pa.bool_()),
    ]
)
TEXT = "text"
#: when the session of an event alone ends
UNTIL = "until"
INPUTS = WORDS.append(pa.field(TEXT, pa.string())).append(pa.field(UNTIL, INSTANT))
#: the column with the length of that session as text, and the lengths in seconds
PAUSE = "pause"
PAUSES = (-1, 0, 1, 90, 600, 1800)
#: functions that Spark may fold, and those that depend on the order of events
EXACT = ("count", "sum", "avg", "min", "max", "bool_and", "bool_or", "count_if")
ORDERED = ("first", "last", "min_by", "max_by")
#: functions that lose digits if floats differ much in size
MOMENTS = ("var_", "stddev_", "covar_", "corr", "weighted_avg")
OBJECTS = (
    Aggregate("collect_list", "n", "all_n"),
    Aggregate("collect_list", TEXT, "all_text"),
    Aggregate("collect_set", "i", "set_i"),
    Aggregate("count_distinct", TEXT, "texts"),
    Aggregate("percentile", "s", "quartiles", (), ((0.25, 0.5),)),
    Aggregate("median", "i", "median"),
    Aggregate("mode", TEXT, "mode"),
    Aggregate("min", TEXT, "least_text"),
    Aggregate("first", TEXT, "first_text"),
    Aggregate("last", TEXT, "last_text", (), (True,)),
    Aggregate("max_by", TEXT, "text_of_most", ("i",)),
)

T = TypeVar("T")


class Dice:
    """Draws from a seed."""

    def __init__(self, *seed: int) -> None:
        """Begin."""
        self.numbers = np.random.default_rng(seed)

    def one(self, choices: Sequence[T]) -> T:
        """Draw one of some."""
        return choices[int(self.numbers.integers(len(choices)))]

    def between(self, low: int, high: int) -> int:
        """Draw a number, both ends included."""
        return int(self.numbers.integers(low, high, endpoint=True))

    def some(self, choices: Sequence[T], count: int) -> list[T]:
        """Draw some of many, in their order."""
        places = self.numbers.choice(len(choices), min(count, len(choices)), replace=False)
        return [choices[place] for place in sorted(places.tolist())]

    def chance(self, share: float) -> bool:
        """Return True with a probability."""
        return bool(self.numbers.random() < share)


@dataclass(frozen=True)
class RandomCase:
    """A plan and its events."""

    seed: int
    plan: Plan
    #: columns `ts`, keys and inputs under the user's names, in the order of arrival
    parts: tuple[pa.Table, ...]
    #: number of the source of each part
    sources: tuple[int, ...]

    def batch(self, parts: Sequence[int]) -> pa.Table:
        """Return the events of some parts as ingest reads them."""
        columns = ("ts", *self.plan.keys.names, *self.plan.inputs.names)
        schema = self.plan.batch_schema
        tables = [schema.empty_table()]
        for number in parts:
            part, rows = self.parts[number], self.parts[number].num_rows
            source = pa.array(np.full(rows, self.sources[number], dtype=np.int32))
            time, *others = (part.column(name) for name in columns)
            tables.append(pa.Table.from_arrays([time, source, *others], schema=schema))
        return pa.concat_tables(tables)

    @property
    def features(self) -> Dataflow | None:
        """Return what computes a view of frames with objects; None if the plan's operators do."""
        view, types = self.plan.views[0], self.plan.types
        objects = any(needs_objects(each, types) for each in view.aggregates)
        if not isinstance(view.windows, Frame) or not objects:
            return None
        time, plan = pa.field("time", self.plan.time), self.plan
        payload = pa.schema([time, *plan.keys, *plan.inputs])
        keys, frame = tuple(plan.keys.names), replace(view.windows, partition="key")
        events = FromSource(payload)
        if frame.slide is None:
            calls = [
                FeatureCall(e.function, e.columns, e.alias, keys, frame, e.parameters)
                for e in view.aggregates
            ]
            node = with_features(events, calls)
        else:
            node = rows_at_slides(events, frame, time, keys, view.aggregates)
        made = PlanStream(node).select("time", *keys, *(each.alias for each in view.aggregates))
        return compiled(((made.node, "append"),), {0: 0}, plan.sources, (payload,), plan.time)

    def batch_of_features(self, events: pa.Table) -> pa.Table:
        """Return events as `features` reads them."""
        flow = self.features
        assert flow is not None
        time, source, *others = events.columns
        return pa.Table.from_arrays([time, source, time, *others], schema=flow.batch_schema)

    def alone(self, view: View) -> Plan:
        """Return the plan with one view."""
        return replace(self.plan, views=(view,), store="auto")


def oracles(case: RandomCase) -> list[ArrivalOracle]:
    """Return the slow version of each view."""
    return [_oracle(view, case.alone(view)) for view in case.plan.views]


def _oracle(view: View, plan: Plan) -> ArrivalOracle:
    if isinstance(view.windows, Frame):
        return ObviousFrames(plan)
    return ObviousSessions(plan) if isinstance(view.windows, Session) else ObviousObjects(plan)


def wrong_rows(view: View, table: pa.Table, expected: Sequence[Row]) -> list[str]:
    """List where the rows of a view differ from those expected."""
    keys = len(view.keys) + view.tells_grouping
    found = frame_rows(table, keys) if isinstance(view.windows, Frame) else rows_of(table)
    both = settled(found), settled(expected)
    if isinstance(view.windows, Frame) and any(each in OBJECTS for each in view.aggregates):
        # rows of features are in order in each shard, and a shard may have any of them
        both = _renumbered(both[0], keys), _renumbered(both[1], keys)
    return differences(*both, keys)


def _text(value: Any) -> str:
    """Return a text that is the same for equal values, whatever numbers they are."""
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    is_number = isinstance(value, Real | Decimal) and not isinstance(value, bool)
    return f"{float(value):.9g}" if is_number else repr(value)


def _renumbered(rows: Iterable[Row], keys: int) -> list[Row]:
    """Number rows of the same time and group by what they say, not by their order."""
    seen: Counter[str] = Counter()
    found = []
    for row in sorted((tuple(map(plain, (row[0], *row[2:]))) for row in rows), key=_text):
        place = repr(row[: 1 + keys])
        found.append((row[0], seen[place], *row[1:]))
        seen[place] += 1
    return found


# -- drawing ---------------------------------------------------------------------------------------


def draw(seed: int, *, specials: bool = True) -> RandomCase:
    """Draw a case; without `specials` floats are finite."""
    dice = Dice(seed)
    extreme = dice.chance(0.3)
    sources = 2 if dice.chance(0.15) else 1
    in_order = dice.chance(0.5)
    slacks = [dice.one((0, 7 * MINUTE, 4 * HOUR)) if in_order else 4 * HOUR for _ in range(sources)]
    nulls = "drop" if dice.chance(0.2) else "error"
    views = [_view(dice, extreme=extreme) for _ in range(dice.one((1, 1, 1, 2, 3)))]
    if len(views) == sources == 1:
        views = [_with_objects(Dice(seed, 3), views[0])]
    on_panes = any(_on_panes(each) for each in views)
    store = dice.one(("auto", "panes", "tuples")) if on_panes else "auto"
    plan = _planned(views, slacks, nulls, dice.one((pa.timestamp("us"), INSTANT)), store)
    count = dice.between(2, 7)
    times = _times(dice, count, in_order=in_order, nulls=nulls)
    values = _values(dice, extreme=extreme, specials=specials)
    parts = [_part(dice, each, plan.time, values) for each in times]
    return RandomCase(
        seed, plan, tuple(parts), tuple(dice.between(0, sources - 1) for _ in range(count))
    )


@dataclass(frozen=True)
class _Asked:
    """A view by the names of its columns."""

    windows: WindowKind
    keys: tuple[str, ...]
    #: groupings by position among the keys; None for one
    sets: tuple[tuple[int, ...], ...] | None
    aggregates: tuple[Aggregate, ...]
    mode: str = "append"


def _on_panes(view: _Asked) -> bool:
    types = {each.name: each.type for each in INPUTS}
    objects = any(needs_objects(each, types) for each in view.aggregates)
    return isinstance(view.windows, Windows | Cumulative) and not objects


def _view(dice: Dice, *, extreme: bool) -> _Asked:
    windows = _windows(dice)
    on_grid = isinstance(windows, Windows | Cumulative)
    keys = tuple(dice.some(KEYS.names, dice.one((0, 1, 1, 2))))
    sets = None
    # rows of a partition have one grouping
    if len(keys) == 2 and not isinstance(windows, Frame) and dice.chance(0.3):
        sets = dice.one((((0, 1), (1,), ()), ((0,), (1,))))
    if isinstance(windows, Frame) and windows.rows is not None and not keys:
        windows = replace(windows, partition="stream")
    aggregates = _aggregates(dice, on_grid=on_grid, extreme=extreme)
    view = _Asked(windows, keys, sets, aggregates)
    return replace(view, mode="changes") if _on_panes(view) and dice.chance(0.25) else view


def _with_objects(dice: Dice, view: _Asked) -> _Asked:
    """Add object functions to some frames of the events of one group."""
    frame = view.windows
    if not isinstance(frame, Frame) or dice.chance(0.4):
        return view
    if frame.partition == "stream" and view.keys:
        return view
    return replace(view, aggregates=(*view.aggregates, *dice.some(OBJECTS, dice.between(1, 3))))


def _windows(dice: Dice) -> WindowKind:
    kind = dice.between(0, 7)
    if kind <= 2:
        reach = dice.one((20 * MINUTE, HOUR, 70 * MINUTE))
        slide = reach if kind == 0 else dice.one((7 * MINUTE, 15 * MINUTE, 20 * MINUTE))
        return Windows(reach, slide, dice.one((0, 6 * MINUTE + 1, -SECOND)))
    if kind == 3:
        return Cumulative(HOUR, dice.one((10 * MINUTE, 15 * MINUTE)), dice.one((0, 7 * MINUTE)))
    if kind == 4:
        gap = dice.one((90 * SECOND, 10 * MINUTE, None, None))
        return Session(gap, UNTIL if gap is None else None)
    every = dice.one((None, None, RowsSlide(3)))
    if kind == 5:
        return Frame(range=dice.one((5 * MINUTE, 30 * MINUTE)), slide=every)
    chosen = dice.one((every, 20 * MINUTE))
    return Frame(rows=dice.between(1, 6), slide=chosen, partition=dice.one(("key", "stream")))


def _aggregates(dice: Dice, *, on_grid: bool, extreme: bool) -> tuple[Aggregate, ...]:
    words = [
        each
        for each in applicable(WORDS)
        if not (extreme and each.function.startswith(MOMENTS) and {"v", "w"} & set(each.columns))
    ]
    palette = dice.one((EXACT, EXACT, ORDERED, ()))
    chosen = [each for each in words if not palette or each.function in palette]
    if palette is EXACT:
        adds = ("sum", "avg")
        chosen = [e for e in chosen if e.function not in adds or e.column not in ("v", "w")]
    found = [Aggregate("count", None, "events"), *dice.some(chosen, dice.between(0, 4))]
    found = [
        replace(each, parameters=(True,))
        if each.function in ("first", "last") and dice.chance(0.3)
        else each
        for each in found
    ]
    if on_grid and palette is not EXACT and dice.chance(0.3):
        found += dice.some(OBJECTS, dice.between(1, 3))
    return tuple(found[dice.one((0, 0, int(len(found) > 1))) :])


def _planned(
    views: Sequence[_Asked], slacks: Sequence[Micros], nulls: str, time: pa.DataType, store: str
) -> Plan:
    keys = [name for name in KEYS.names if any(name in view.keys for view in views)]
    inputs = [
        name
        for name in INPUTS.names
        if any(name in each.columns for view in views for each in view.aggregates)
        or any(view.windows.until == name for view in views if isinstance(view.windows, Session))
    ]
    made = []
    for view in views:
        places = tuple(keys.index(name) for name in view.keys)
        sets = view.sets or (tuple(range(len(places))),)
        groupings = tuple(tuple(sorted(places[i] for i in each)) for each in sets)
        told = view.sets is not None
        made.append(View(view.windows, view.aggregates, groupings, places, told, view.mode))
    return Plan(
        sources=tuple(Source(f"source{n}", slack, nulls) for n, slack in enumerate(slacks)),
        keys=pa.schema([KEYS.field(name) for name in keys]),
        inputs=pa.schema([INPUTS.field(name) for name in inputs]),
        expressions=tuple(inputs),
        views=tuple(made),
        time=time,
        store=store,
    )


def _times(dice: Dice, parts: int, *, in_order: bool, nulls: str) -> list[list[Micros | None]]:
    """Draw the times of each part, many of them equal."""
    grain = dice.one((1, 700_001, 20 * MINUTE))
    counts = [dice.between(0, 40) for _ in range(parts)]
    drawn = dice.numbers.integers(0, SPAN, sum(counts))
    if in_order:
        delay = dice.numbers.integers(0, dice.one((1, 5 * MINUTE, HOUR)), len(drawn))
        drawn = np.sort(drawn)[np.argsort(np.sort(drawn) + delay, kind="stable")]
        if dice.chance(0.3):
            drawn = np.where(drawn > SPAN // 2, drawn + 100 * HOUR, drawn)
    times = (dice.one(STARTS) + drawn // grain * grain).tolist()
    missing = dice.numbers.random(len(drawn)) < (0.1 if nulls == "drop" else 0.0)
    found = [None if gone else time for time, gone in zip(times, missing, strict=True)]
    bounds = np.cumsum([0, *counts]).tolist()
    return [found[a:b] for a, b in pairwise(bounds)]


def _values(dice: Dice, *, extreme: bool, specials: bool) -> list[float]:
    values = [1e17, 1.0, -1e17, 0.0, -0.0, 0.1, 3.5] if extreme else [0.0, -0.0, 0.1, 2.75, -7.0]
    if specials and dice.chance(0.3):
        values += [float("nan"), float("inf"), float("-inf")]
    return values


def _part(
    dice: Dice, times: list[Micros | None], time: pa.DataType, values: list[float]
) -> pa.Table:
    numbers, count = dice.numbers, len(times)
    gone = dice.one((0.0, 0.2))

    def column(drawn: Any, kind: pa.DataType) -> pa.Array:
        return pa.array(drawn, mask=numbers.random(count) < gone).cast(kind)

    def whole(low: int, high: int) -> Any:
        return numbers.integers(low, high, count, endpoint=True)

    columns: dict[str, pa.Array] = {
        "ts": pa.array(times, pa.int64()).cast(time),
        "k": column(whole(0, 2), pa.int64()),
        "name": column(numbers.choice(["a", "b c", "é"], count), pa.string()),
        "f": column(numbers.choice([*values[3:6], 1e300], count), pa.float64()),
        "day": column(whole(-400, -399).astype(np.int32), pa.date32()),
        "n": column(whole(-(2**40), 2**40), pa.int64()),
        "i": column(whole(-5, 5), pa.int32()),
        "s": column(whole(-3, 3), pa.int16()),
        "v": column(numbers.choice(values, count), pa.float64()),
        "w": column(numbers.choice(values, count).astype(np.float32), pa.float32()),
        "at": column(whole(-(10**15), 10**15), INSTANT),
        "flag": column(numbers.random(count) < 0.5, pa.bool_()),
        TEXT: column(numbers.choice(["x", "yy", "z z", "ß"], count), pa.string()),
    }
    for name in ("price", "wide"):
        kind = INPUTS.field(name).type
        cents = [Decimal(int(each)).scaleb(-kind.scale) for each in whole(-999_999, 999_999)]
        hidden = numbers.random(count) < gone
        kept = [None if out else each for each, out in zip(cents, hidden, strict=True)]
        columns[name] = pa.array(kept, kind)
    pauses = column(numbers.choice(PAUSES, count), pa.int64()).to_pylist()
    columns[PAUSE] = pa.array(
        [None if each is None else f"{each} seconds" for each in pauses], pa.string()
    )
    columns[UNTIL] = pa.array(
        [
            None if None in (at, each) else at + each * SECOND
            for at, each in zip(times, pauses, strict=True)
        ],
        pa.int64(),
    ).cast(INSTANT)
    names = ("ts", *KEYS.names, *INPUTS.names, PAUSE)
    return pa.table({name: columns[name] for name in names})
