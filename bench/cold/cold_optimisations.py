"""The effect of each way to write less: clean groups, deltas, expiry.

Idea: three small experiments, each a switch of the store. *Clean groups*: requests read the ratings
of users nine times as often as ratings come; a group that was only read is evicted without a write,
or is written again. *Deltas*: all groups are read back, some get one more rating, and all are
evicted again; the time until they are on disk is measured, writing either new rows or whole groups.
*Expiry*: the same rows are kept for a while, either as rows with an expiry, so that old segments
are unlinked, or as rows that are removed explicitly, so that live ones have to be copied out of old
segments.

Invariants:
1. The switches do not change the rows (`test_oracle_clean_groups_change_no_answer`,
   `test_oracle_deltas_change_no_row`, `test_oracle_expiry_and_cleaning_keep_the_same_rows`).

Limits: writes go to the page cache, and only queries sync them; the second and third experiment use
a store without a query. In the first and second, cold groups return to memory on the first read: if
they returned on the second, few clean groups would be evicted.

References: ICE, section VIII-C (table I, figure 8) and VI-A.3.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.cold.cold_zipf import UNLIMITED, ZipfRun, accumulated
from bench.registry import Figures, Size
from examples.recommender.generator import Ratings
from examples.recommender.workload import EVENT_SCHEMA, RatingWorkload
from icestream.core.arrays import Ids, Ints
from icestream.operators.dataflow.stores import ColdOptions
from icestream.operators.lifetimes.changes import RE
from icestream.operators.lifetimes.rows_by_group import live_events_synopsis
from icestream.plan.events.dataflow import Dataflow
from icestream.state.groups.options import Durability, StoreOptions
from icestream.state.groups.spec import GroupRows, Synopsis
from icestream.state.groups.store import GroupStore
from tests.fixtures.dataflow_plans import PlanStream, dataflow
from tests.fixtures.group_space import GroupSpace

#: columns of an event, without its time
COLUMNS = pa.schema([field for field in EVENT_SCHEMA if field.name not in {"time", "since"}])
#: share of the state of an unlimited run that fits into memory
MEMORY = 0.59
#: per cent of the groups that get one more rating
UPDATED = (0, 10, 25, 50, 75, 100)
#: bytes of records, and so the granularity in which a log frees space
RECORDS = (4_096, 65_536, 1 << 20)

RATED = pa.schema([("item", pa.int64()), ("rating", pa.float64())])
SYNOPSIS = live_events_synopsis("right", RATED)


# -- clean groups --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mixed:
    """Ratings first, then a mix of nine requests to each rating."""

    users: int
    items: int
    ratings: int
    #: events after the ratings, and of a batch
    events: int
    batch: int


MIXED = {
    Size.SMALL: Mixed(7_000, 1_500, 200_000, 40_000, 10_000),
    Size.FULL: Mixed(70_000, 10_600, 2_000_000, 600_000, 20_000),
}


def mixed_flow(options: StoreOptions) -> Dataflow:
    """Return the query: requests meet the ratings of their user."""
    events = PlanStream.of(COLUMNS)
    rated = events.where("stream = 0").select("user", "item", "rating").forever()
    asking = events.where("stream = 1").select("user", "stream AS asked")

    def best(rated: PlanStream, asking: PlanStream) -> PlanStream:
        return rated.join(
            asking.select("user AS who", "asked"), where="rating > 4.5", hidden=("who", "asked")
        )

    made = rated.apply(("user",), best, asking)
    return replace(dataflow(made, columns=(COLUMNS,), slack=0), cold=ColdOptions(options))


def clean_groups(scale: Mixed, folder: Path) -> dict[str, Any]:
    """Run the mix with clean groups free and written again, and count the bytes written."""
    ratings = Ratings(scale.users, scale.items, scale.ratings + scale.events // 10).table()
    workload = RatingWorkload(ratings, scale.ratings, events=scale.events)
    events = workload.table()
    budget = UNLIMITED
    figures: dict[str, Any] = {}
    answers: list[pa.Table] = []
    for name in ("unlimited", "clean is free", "clean is written"):
        is_free = name != "clean is written"
        options = StoreOptions("evict", clean_is_free=is_free, second_ask=False)
        run = ZipfRun(mixed_flow(options), budget, str(folder / "run"))
        # the ratings that come first are one batch
        later = range(scale.ratings, scale.ratings + scale.events, scale.batch)
        batches = cut_events(events, [0, *later, len(events)], run.flow.batch_schema)
        run.feed(next(batches))
        before = dict(run.cold)
        rows = [run.feed(batch) for batch in batches]
        seconds = sum(run.wall[1:])
        if name == "unlimited":
            budget = int(MEMORY * run.state_bytes)
        else:
            written = {key: run.cold[key] - before[key] for key in ("evicted", "extents", "left")}
            figures[name] = {
                "bytes_written": written["evicted"],
                "groups_written": written["extents"],
                "groups_left": written["left"],
                "groups_returned": run.cold["returned"] - before["returned"],
                "writes_per_second": written["extents"] / seconds,
                "events_per_second": scale.events / seconds,
                "budget_bytes": budget,
            }
        answers.append(accumulated(rows))
        run.close()
    figures["clean groups"] = {
        "cut_of_bytes": 1 - _ratio(figures, "bytes_written"),
        "cut_of_writes": 1 - _ratio(figures, "groups_written"),
        "wrong_answers": sum(not each.equals(answers[0]) for each in answers[1:]),
    }
    return figures


def _ratio(figures: Figures, field: str) -> float:
    free, written = figures["clean is free"][field], figures["clean is written"][field]
    return float(free / written) if written else 0.0


def cut_events(
    events: pa.Table, cuts: Sequence[int], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield events as ingest reads them, from each cut to the next."""
    for first, last in pairwise(cuts):
        rows = events.slice(first, last - first).combine_chunks()
        columns = [rows.column(name).combine_chunks() for name in COLUMNS.names]
        source = pa.array(np.zeros(len(rows), dtype=np.int32))
        times = rows.column("time").combine_chunks().cast(schema.types[0])
        yield pa.RecordBatch.from_arrays([times, source, *columns], schema=schema)


# -- deltas --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filled:
    """Groups full of ratings."""

    users: int
    ratings: int
    #: bytes of memory, enough for all
    quota: int


FILLED = {
    Size.SMALL: Filled(7_000, 500_000, 1 << 30),
    Size.FULL: Filled(70_000, 5_000_000, 4 << 30),
}


def deltas(scale: Filled, folder: Path) -> dict[str, Any]:
    """Measure the time to evict all groups, by the share of groups with new rows."""
    figures: dict[str, Any] = {}
    for durability in ("evict", "log"):
        found = {on: _leaving(scale, durability, on, folder) for on in (True, False)}
        for on, runs in found.items():
            figures[f"{durability}, {'deltas' if on else 'whole groups'}"] = {
                "updated_percent": list(UPDATED),
                "seconds": [run["seconds"] for run in runs],
                "cpu_seconds": [run["cpu_seconds"] for run in runs],
                "bytes_written": [run["bytes_written"] for run in runs],
                "wrong_rows": sum(run["wrong_rows"] for run in runs),
            }
    for durability in ("evict", "log"):
        on, off = (figures[f"{durability}, {how}"] for how in ("deltas", "whole groups"))
        figures[f"{durability}, time saved"] = _saved(on["seconds"], off["seconds"])
        figures[f"{durability}, cpu time saved"] = _saved(on["cpu_seconds"], off["cpu_seconds"])
    return figures


def _saved(on: list[float], off: list[float]) -> float:
    """Return the share of time saved, averaged over the shares updated."""
    return float(np.mean([1 - some / all_ for some, all_ in zip(on, off, strict=True)]))


def _leaving(
    scale: Filled, durability: Durability, with_deltas: bool, folder: Path
) -> list[dict[str, Any]]:
    options = StoreOptions(durability=durability, deltas=with_deltas, second_ask=False)
    place = folder / "store"
    shutil.rmtree(place, ignore_errors=True)
    space = GroupSpace(str(place), (SYNOPSIS,), options, quota=scale.quota)
    dice = np.random.default_rng(1)
    id_high, id_low = _identities(scale.users)
    owners = np.sort(dice.integers(0, scale.users, scale.ratings))
    with space.version(1) as store:
        slots = store.locate(id_high, id_low)
        store.append(0, slots[owners], _rated(owners))
        store.eviction.evict(slots)
    runs, rows = [], scale.ratings
    for percent in UPDATED:
        with space.version() as store:
            slots = store.locate(id_high, id_low)
            found = sum(store.read(0, some).rows.num_rows for some in store.portions(slots))
            chosen = dice.permutation(scale.users)[: scale.users * percent // 100]
            store.append(0, slots[chosen], _rated(chosen))
            wall, cpu = time.perf_counter(), time.process_time()
            store.eviction.evict(slots)
        runs.append(
            {
                "seconds": time.perf_counter() - wall,
                "cpu_seconds": time.process_time() - cpu,
                "bytes_written": _written(space, 1),
                "wrong_rows": abs(rows - found),
            }
        )
        rows += len(chosen)
    shutil.rmtree(place)
    return runs


def _written(space: GroupSpace, versions: int) -> int:
    """Return the bytes of the segments that the last versions wrote."""
    return sum(info.bytes for past in space.history[-versions:] for _, info in past.segments)


def _identities(groups: int) -> tuple[Ids, Ids]:
    """Return ids that look like hashes."""
    number = np.arange(1, groups + 1, dtype=np.uint64)
    return number * np.uint64(0x9E3779B97F4A7C15), number * np.uint64(0xBF58476D1CE4E5B9)


def _rated(owners: Ints) -> pa.RecordBatch:
    """Return a rating for each owner that never expires."""
    return _rows(owners, np.zeros(len(owners), dtype=np.int64), np.full(len(owners), 1 << 62))


def _rows(owners: Ints, begins: Ints, ends: Ints) -> pa.RecordBatch:
    columns = [
        begins,
        ends,
        np.ones(len(owners), dtype=np.int64),
        owners * 31 % 10_600,
        owners % 10 / 2,
    ]
    arrays = [pa.array(each, f.type) for each, f in zip(columns, SYNOPSIS.schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SYNOPSIS.schema)


# -- expiry --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Passing:
    """Rows with a limited lifetime."""

    groups: int
    #: rows of a version, versions, and versions for which a row is kept
    rows: int
    versions: int
    window: int
    quota: int


PASSING = {
    Size.SMALL: Passing(2_000, 20_000, 40, 8, 256 << 20),
    Size.FULL: Passing(50_000, 200_000, 60, 10, 2 << 30),
}


def expiry(scale: Passing, folder: Path) -> dict[str, Any]:
    """Store the same rows with expiry, in small and large records, and with removal."""
    figures: dict[str, Any] = {}
    sums: set[tuple[int, int]] = set()
    ways = [(f"expiry, records of {size}", True, size) for size in RECORDS]
    ways.append(("cleaning", False, 65_536))
    for name, expires, size in ways:
        figures[name], found = _passing(scale, expires, size, folder)
        sums.add(found)
    coarse = replace(
        scale,
        rows=4 * scale.rows,
        versions=scale.versions // 4,
        window=max(1, scale.window // 4),
    )
    figures["expiry, versions of four"], _ = _passing(coarse, True, 65_536, folder)
    by_expiry, by_cleaning = figures["expiry, records of 65536"], figures["cleaning"]
    figures["expiry and cleaning"] = {
        "log_bytes_ratio": by_cleaning["log_bytes"] / by_expiry["log_bytes"],
        "time_ratio": by_cleaning["seconds"] / by_expiry["seconds"],
        "cpu_ratio": by_cleaning["cpu_seconds"] / by_expiry["cpu_seconds"],
        "wrong_ways": len(sums) - 1,
    }
    return figures


def _passing(
    scale: Passing, expires: bool, record_bytes: int, folder: Path
) -> tuple[dict[str, Any], tuple[int, int]]:
    """Run one way to delete rows; return figures, and the rows and their sum at the end."""
    place = folder / "store"
    shutil.rmtree(place, ignore_errors=True)
    synopsis = SYNOPSIS if expires else Synopsis("right", SYNOPSIS.schema)
    options = StoreOptions(record_bytes=record_bytes)
    space = GroupSpace(str(place), (synopsis,), options, quota=scale.quota)
    id_high, id_low = _identities(scale.groups)
    logs, begun = [], (time.perf_counter(), time.process_time())
    found = (0, 0)
    for version in range(scale.versions):
        dice = np.random.default_rng([7, version])
        owners = np.sort(dice.integers(0, scale.groups, scale.rows))
        touched, place_of = np.unique(owners, return_inverse=True)
        new = _rows(
            owners,
            np.full(len(owners), version + 1),
            np.full(len(owners), version + 1 + scale.window),
        )
        with space.version(version + 1) as store:
            store.begin(version)
            slots = store.locate(id_high[touched], id_low[touched])
            counts = _kept(store, slots, place_of, new, version if not expires else None)
        found = (found[0] + counts[0], found[1] + counts[1])
        logs.append(space.log_bytes)
    seconds, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
    live = min(scale.window, scale.versions) * scale.rows * 8 * len(SYNOPSIS.schema)
    shutil.rmtree(place)
    steady = logs[scale.window :]
    figures = {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "log_bytes": float(np.mean(steady)),
        "log_bytes_most": max(steady),
        "log_to_live": float(np.mean(steady)) / live,
        "log_to_live_most": max(steady) / live,
        "bytes_written": _written(space, scale.versions),
        "log_over_time": logs,
    }
    return figures, found


def _kept(
    store: GroupStore, slots: Ints, owners: Ints, new: pa.RecordBatch, watermark: int | None
) -> tuple[int, int]:
    """Read groups and add rows; remove those that ended by a watermark, if given."""
    count = total = 0
    for some in store.portions(slots):
        there = store.read(0, some)
        ends = np.asarray(there.rows.column(RE).to_numpy())
        alive: npt.NDArray[np.bool_] = ends > (watermark if watermark is not None else 0)
        count += int(alive.sum())
        total += int(ends[alive].sum())
        if watermark is not None and not alive.all():
            store.rewrite(
                0, some, GroupRows(there.owners[alive], there.rows.filter(pa.array(alive)))
            )
    store.append(0, slots[owners], new)
    return count, total
