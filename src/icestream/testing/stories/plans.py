"""Plans for tests: a window aggregate in one call, and a query on a folder in another.

Idea: a test names only what it is about (a range, a key type, a function); everything else has a
small, ordinary default. Intervals are text or microseconds, as the user writes them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from icestream.core.units import parse_bytes, parse_interval
from icestream.operators.aggregates import Aggregate, applicable
from icestream.operators.windows.panes import Windows
from icestream.plan.nodes import Plan, Source, WindowKind
from icestream.runtime.local import LocalQuery
from icestream.runtime.versions.settings import Settings
from icestream.state.files import Files, LocalFiles, NewFile

#: type of the time column in tests
INSTANT = pa.timestamp("us", "UTC")

#: one column of every type that an aggregate takes
EVERY_INPUT = pa.schema(
    [
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("plain", pa.int32()),
        ("big", pa.int64()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("ratio", pa.decimal128(18, 6)),
        ("wide", pa.decimal128(28, 3)),
        ("day", pa.date32()),
        ("instant", INSTANT),
        ("flag", pa.bool_()),
    ]
)


class QuickFiles(LocalFiles):
    """The local disk without syncs, for tests in which processes die and machines do not."""

    def create(self, path: str) -> NewFile:
        """Create a file exclusively."""
        return _Unsynced(super().create(path))

    def sync_folder(self, folder: str) -> None:
        """Do nothing."""

    def sync_files(self, paths: Collection[str]) -> None:
        """Do nothing."""


class _Unsynced:
    def __init__(self, file: NewFile) -> None:
        self.write = file.write
        self.close = file.close

    def sync(self) -> None:
        pass


def every_aggregate(inputs: pa.Schema) -> tuple[Aggregate, ...]:
    """Return `count(*)` and every function over words with every column it takes."""
    single = tuple(applicable(inputs))
    passing_over_nulls = (
        replace(each, alias=f"{each.alias}_there", parameters=(True,))
        for each in single
        if each.function in ("first", "last")
    )
    return (Aggregate("count", None, "events"), *single, *passing_over_nulls)


def window_plan(
    reach: str | int = "10 seconds",
    slide: str | int | None = None,
    *,
    offset: str | int = 0,
    slack: str | int | Sequence[str | int] = "5 seconds",
    keys: pa.Schema | None = None,
    inputs: pa.Schema | None = None,
    aggregates: Sequence[Aggregate] | None = None,
    grouping_sets: tuple[tuple[int, ...], ...] | None = None,
    late: str = "drop",
    nulls: str = "error",
    windows: WindowKind | None = None,
    mode: str = "append",
    store: str = "panes",
) -> Plan:
    """Return a plan: windows that reach `reach`, one source for each slack.

    `windows` are of any other kind. Without `slide` windows tumble; without `keys` there is one,
    `key`, an int64; without `inputs` there is one, `value`, a float64; without `aggregates` there
    are all that apply.
    """
    length = parse_interval(reach)
    step = length if slide is None else parse_interval(slide)
    columns = pa.schema([("value", pa.float64())]) if inputs is None else inputs
    slacks = [slack] if isinstance(slack, str | int) else slack
    return Plan.of(
        sources=tuple(
            Source(f"source{i}", parse_interval(each), nulls) for i, each in enumerate(slacks)
        ),
        windows=windows or Windows(length, step, parse_interval(offset)),
        keys=pa.schema([("key", pa.int64())]) if keys is None else keys,
        inputs=columns,
        expressions=tuple(columns.names),
        aggregates=every_aggregate(columns) if aggregates is None else tuple(aggregates),
        grouping_sets=grouping_sets,
        time=INSTANT,
        late=late,
        mode=mode,
        store=store,
    )


def open_query(
    plan: Plan,
    folder: str,
    *,
    budget: str | int = "16 MB",
    shards: int = 2,
    keep: int = 2,
    files: Files | None = None,
) -> LocalQuery:
    """Open the query whose checkpoint and arenas are in `folder`, new or where it stands.

    Nothing is synced unless `files` does.
    """
    settings = Settings(
        root=os.path.join(folder, "checkpoint"),
        local=os.path.join(folder, "local"),
        budget=parse_bytes(budget),
        shards=shards,
        keep=keep,
    )
    return LocalQuery(plan, settings, files or QuickFiles())
