"""Event latency on a Spark cluster while load moves from worker to worker, with balancing and not.

Idea: two workers have a core each and a folder of their own; a query does some work for every event
in the shard of its key. What both can do is measured with a backlog of even load, in batches so
large that what every batch costs hardly counts. Then files come in real time, at 0.8 of that, but
the shards that one worker has when a round begins get three quarters of the events: 1.2 of what
their worker can do. The next round chooses the other worker. A batch lasts as long as its busiest
task, so without balancing events wait longer and longer. The latency of an event is the time from
when its file was there to the end of its batch.

    round            1            2            3
    worker 0    1.2 of a core    0.4          1.2      mean 0.8: balanced, both keep up
    worker 1        0.4          1.2          0.4

Limits: the driver runs on the same two cores, and so does whatever else the machine does; a part of
the work is Spark's own, which does not move.

References: section 7.5, figure 13, of the source named in `docs/papers.md`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import icestream as ice
from bench.registry import Size
from icestream.kernels.fold import routes_of
from icestream.operators.process.vectorised import GroupedBatch, State
from icestream.state.keys import KeyCodec

WORKERS = 2
SHARDS = 16
KEYS = 8_000
#: share of the events for the shards of the hot worker, and load by what all workers can do
HOT_SHARE, LOAD = 0.75, 0.8
#: seconds from file to file
STEP = 0.5
#: passes over the values of events
PASSES = 2_000
#: rows and files of the backlog that shows what the workers can do, and files of a batch
PIECE, BACKLOG, AT_ONCE = 40_000, 40, 8


@dataclass(frozen=True)
class Rounds:
    """How long the load moves."""

    count: int
    seconds: float


CASES = {Size.SMALL: Rounds(2, 25.0), Size.FULL: Rounds(5, 60.0)}


class PresentValue(ice.VectorisedProcessor):
    """Adds up the present values of loans by key: work for every event."""

    state = {"worth": ice.ValueState("total double")}  # noqa: RUF012 - as users write it
    output = "key bigint, total double"

    def process(self, batch: GroupedBatch, state: State) -> None:
        """Work, and add up."""
        monthly = batch.column("value").astype(np.float64)
        worth = np.zeros(len(monthly))
        for month in range(PASSES):
            worth += monthly * np.exp(-(0.001 + monthly / 1e6) * month)
        totals = np.add.reduceat(worth, batch.starts[:-1])
        state.worth.set([state.worth.numpy()["total"] + totals])


@dataclass
class SkewedRun:
    """Files of a run and its versions."""

    #: when each file was there, and its rows
    files: list[tuple[float, int]] = field(default_factory=list)
    #: when each version ended
    ended: dict[int, float] = field(default_factory=dict)
    reports: dict[int, Any] = field(default_factory=dict)

    def note(self, query: Any) -> None:
        """Remember the reports, of which a query keeps the last hundred."""
        self.reports |= {each["version"]: each for each in query.recentProgress}

    @property
    def moves(self) -> int:
        """Return how many shards moved to another executor."""
        found, before = 0, None
        for _, each in sorted(self.reports.items()):
            now = each["icestream"]["shards"]["executors"]
            found += 0 if before is None else sum(map(str.__ne__, before, now))
            before = now
        return found

    @property
    def processed(self) -> int:
        return sum(each["numInputRows"] for each in self.reports.values())

    def latencies(self) -> npt.NDArray[np.float64]:
        """Return the seconds that the events of each file took, once for each step of rows."""
        versions = sorted(v for v in self.reports if self.reports[v]["numInputRows"])
        reached = np.cumsum([self.reports[v]["numInputRows"] for v in versions])
        came = np.cumsum([rows for _, rows in self.files])
        places = np.searchsorted(reached, came)
        return np.array(
            [
                self.ended[versions[place]] - at
                for (at, _), place in zip(self.files, places.tolist(), strict=True)
            ]
        )


def measured(spark: Any, folder: Path, size: Size) -> dict[str, Any]:
    """Return latencies with and without balancing, and the number of moves."""
    keys = keys_by_shard()
    rate = _capacity(spark, folder / "capacity", keys)
    rounds = CASES[size]
    figures: dict[str, Any] = {"events_per_second_of_both": rate, "rounds": rounds.count}
    for name, rebalance in (("without balancing", "off"), ("with balancing", "auto")):
        run = _run(spark, folder / rebalance, keys, rate, rounds, rebalance)
        late = run.latencies()
        figures[name] = {
            "p50_s": float(np.percentile(late, 50)),
            "p99_s": float(np.percentile(late, 99)),
            "moves": run.moves,
            "lost_or_twice": sum(rows for _, rows in run.files) - run.processed,
            "versions": len(run.reports),
            "latency_s": late.tolist(),
        }
    return figures


def keys_by_shard() -> list[npt.NDArray[np.int64]]:
    """Return the keys of each shard."""
    keys, schema = np.arange(KEYS), pa.schema([("key", pa.int64())])
    batch = pa.RecordBatch.from_arrays([pa.array(keys)], schema=schema)
    id_high, _ = KeyCodec(schema).identify(batch)
    found = np.empty(KEYS, dtype=np.int64)
    routes_of(id_high, SHARDS, np.arange(SHARDS), found, np.zeros(SHARDS, dtype=np.int64))
    return [keys[found == shard] for shard in range(SHARDS)]


def _write(path: Path, keys: Sequence[npt.NDArray[np.int64]], counts: Sequence[int]) -> None:
    """Write a file with so many events of each shard, under its name once it is whole."""
    dice = np.random.default_rng(len(path.name) + sum(counts))
    chosen = [mine[dice.integers(0, len(mine), n)] for mine, n in zip(keys, counts, strict=True)]
    rows = sum(counts)
    now = np.full(rows, int(1e6 * time.time()))
    events = {
        "ts": pa.array(now).cast(pa.timestamp("us", "UTC")),
        "key": np.concatenate(chosen),
        "value": dice.integers(0, 1_000, rows),
    }
    hidden = path.with_name(f".{path.name}")
    pq.write_table(pa.table(events), hidden)
    hidden.rename(path)


def _started(spark: Any, folder: Path, run: SkewedRun, rebalance: str, **reading: Any) -> Any:
    stream = spark.readStream.schema("ts timestamp, key bigint, value bigint")
    events = ice.stream(stream.options(**reading).parquet(str(folder / "in")), time="ts").events()
    result = events.select("key", "value").groupApply("key", lambda g: g.process(PresentValue()))

    def note(_rows: Any, number: int) -> None:
        run.ended[number + 1] = time.time()

    writer = result.writeStream.foreachBatch(note).option("rebalance", rebalance)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    # in the working folder of each executor
    writer = writer.option("localDir", "arenas").option("input", "auto").memory("512 MB")
    return writer.shards(SHARDS).parallelism(WORKERS).trigger(processingTime="0 seconds").start()


def _capacity(spark: Any, folder: Path, keys: Sequence[npt.NDArray[np.int64]]) -> float:
    """Return the events that the workers process in a second while all have the same load."""
    (folder / "in").mkdir(parents=True)
    for number in range(BACKLOG):
        path = folder / "in" / f"{number:06d}.parquet"
        _write(path, keys, [PIECE // SHARDS] * SHARDS)
        os.utime(path, (1e9 + number, 1e9 + number))
    run = SkewedRun()
    query = _started(spark, folder, run, "off", maxFilesPerTrigger=AT_ONCE)
    query.processAllAvailable()
    query.stop()
    run.note(query)
    ends = [at for _, at in sorted(run.ended.items())][1 : BACKLOG // AT_ONCE]
    rows = AT_ONCE * (PIECE // SHARDS) * SHARDS
    return rows * (len(ends) - 1) / (ends[-1] - ends[0])


def _run(
    spark: Any,
    folder: Path,
    keys: Sequence[npt.NDArray[np.int64]],
    rate: float,
    rounds: Rounds,
    rebalance: str,
) -> SkewedRun:
    """Feed files in real time and wait until all of them are processed."""
    (folder / "in").mkdir(parents=True)
    run = SkewedRun()
    query = _started(spark, folder, run, rebalance)
    rows, number, hot = int(LOAD * rate * STEP), 0, set[int]()
    begun = time.monotonic()
    for round_ in range(rounds.count):
        hot = _shards_of(run, round_ % WORKERS)
        counts = [
            int(rows * (HOT_SHARE / len(hot) if shard in hot else (1 - HOT_SHARE) / _others(hot)))
            for shard in range(SHARDS)
        ]
        while time.monotonic() - begun < (round_ + 1) * rounds.seconds:
            time.sleep(max(0.0, begun + number * STEP - time.monotonic()))
            _write(folder / "in" / f"{number:06d}.parquet", keys, counts)
            run.files.append((time.time(), sum(counts)))
            number += 1
            run.note(query)
    query.processAllAvailable()
    query.stop()
    run.note(query)
    return run


def _shards_of(run: SkewedRun, task: int) -> set[int]:
    """Return the shards that a task had last."""
    if not run.reports:
        return {shard for shard in range(SHARDS) if shard * WORKERS // SHARDS == task}
    placed = run.reports[max(run.reports)]["icestream"]["taskOfShard"]
    return {shard for shard, where in enumerate(placed) if where == task}


def _others(hot: set[int]) -> int:
    return max(1, SHARDS - len(hot))
