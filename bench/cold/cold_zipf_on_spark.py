"""Groups of very different popularity on Spark: the queries of `cold_zipf`, from files to files.

Idea: the same events in files, a file per batch, and the same queries through the public interface.
Runs with all memory and with a part of it alternate. The last file, which is not timed, requests
every fixed group.

Run as `python -m bench.cold.cold_zipf_on_spark PLAN`; prints one JSON line per run.

Invariants:
1. Results are those of numpy (`test_what_is_wrong_on_spark_is_counted`).

References: ICE, section VIII-A.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.cold.cold_zipf import (
    COLUMNS,
    PROCESSORS,
    SEEN,
    TICK,
    UNLIMITED,
    VALUES,
    Accesses,
    Case,
    Matches,
    totals,
)
from bench.processes import results
from bench.steady import steady_rate

SCHEMA = "time timestamp, key bigint, value bigint, asks boolean"
LIMIT = 1_800.0


def measure(case: Case, share: float, repeats: int, folder: Path) -> dict[str, Any]:
    """Run with all memory, then alternately with a share of the bytes used and with all."""
    shutil.rmtree(folder, ignore_errors=True)
    write_events(folder / "events", case)
    command = [sys.executable, "-m", "bench.cold.cold_zipf_on_spark"]
    plan = {"case": asdict(case), "share": share, "repeats": repeats, "folder": str(folder)}
    found = results(command, plan, limit=LIMIT)
    shutil.rmtree(folder)
    rates = {
        name: [run["rate"] for run in found if run["name"] == name] for name in ("all", "part")
    }
    ratios = [part / every for every, part in zip(rates["all"], rates["part"], strict=True)]
    return {
        "events_per_second": float(np.median(rates["all"])),
        "events_per_second_limited": float(np.median(rates["part"])),
        "ratio": float(np.median(ratios)),
        "ratios": ratios,
        "state_bytes": found[0]["state_bytes"],
        "budget_bytes": int(share * found[0]["state_bytes"]),
        "misses": found[-1]["misses"],
        "wrong": sum(run["wrong"] for run in found),
    }


def write_events(folder: Path, case: Case) -> None:
    """Write a file per batch, and one that requests every group."""
    folder.mkdir(parents=True)
    accesses = case.accesses
    every = np.arange(accesses.groups)
    last = (
        np.full(len(every), accesses.events * TICK),
        every,
        every % VALUES,
        np.ones(len(every), dtype=np.bool_),
    )
    for number in range(accesses.batches + (case.kind != "growing")):
        columns = accesses.columns(number) if number < accesses.batches else last
        times = pa.array(columns[0]).cast(pa.timestamp("us", "UTC"))
        path = folder / f"{number:04d}.parquet"
        names = ["time", *COLUMNS.names]
        pq.write_table(pa.table([times, *columns[1:]], names=names), path, compression="lz4")
        # Spark reads files in the order of their modification times
        os.utime(path, (number + 1, number + 1))


def run(case: Case, folder: Path) -> dict[str, Any]:
    """Run one query over all its files."""
    import icestream as ice  # noqa: PLC0415 - only the process that runs Spark needs it

    spark = ice.local_session("cold-zipf", cores=2, conf={"spark.sql.session.timeZone": "UTC"})
    files = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / "events"))
    )
    events = ice.stream(files, time="time", slack="0 seconds").events()
    if case.kind == "growing":
        kept = events.where("NOT asks").select("key", "value").forever()
        asking = events.where("asks").select("key", "value AS wanted")
        made = kept.join(asking, on="key", where=SEEN)
    else:
        made = events.groupApply("key", lambda group: group.process(PROCESSORS[case.kind]()))
    output, checkpoint = folder / "results", folder / "checkpoint"
    for old in (output, checkpoint):
        shutil.rmtree(old, ignore_errors=True)
    query = (
        made.writeStream.format("parquet")
        .option("path", str(output))
        .option("checkpointLocation", str(checkpoint))
        .memory(case.budget)
        .shards(case.shards)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    accesses = case.accesses
    reports = [each for each in query.recentProgress if each["numInputRows"]][: accesses.batches]
    cold = reports[-1]["icestream"]["coldState"]
    return {
        "rate": steady_rate(reports, accesses.batches // 2),
        "state_bytes": cold["resident_bytes"] + cold["directory_bytes"],
        "misses": cold["returned"],
        "wrong": wrong(pq.read_table(output), case.kind, accesses),
    }


def wrong(rows: pa.Table, kind: str, accesses: Accesses) -> int:
    """Count results that differ from numpy's."""
    if kind == "growing":
        return Matches.of(accesses).wrong(rows, 0, accesses.events)
    # Spark's files may have nanoseconds
    start = pc.struct_field(rows.column("lifetime").combine_chunks(), "start")
    start = start.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    last = rows.filter(pc.equal(start, accesses.events * TICK))
    wanted = totals(accesses, kind)
    got = np.full_like(wanted, -1)
    got[:, last.column("key").to_numpy()] = (
        last.column("n").to_numpy(),
        last.column("total").to_numpy(),
    )
    return int((got != wanted).any(axis=0).sum())


def main(plan: Mapping[str, Any]) -> None:
    """Run everything in the plan, printing a line for each run."""
    case, folder = Case(**plan["case"]), Path(plan["folder"])

    def tell(name: str, budget: int) -> dict[str, Any]:
        found = {"name": name, **run(replace(case, budget=budget), folder)}
        print(json.dumps(found), flush=True)
        return found

    state = tell("first", UNLIMITED)["state_bytes"]
    for _ in range(plan["repeats"]):
        tell("all", UNLIMITED)
        tell("part", int(plan["share"] * state))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
