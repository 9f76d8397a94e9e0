"""Histories of queries that never ran, with every fact that a real one can tell.

Idea: a page is tested with all it can show, at once and without waiting. Each kind of query has its
facts: windows with an estimate, groups that leave memory, joins that spill, updates that wait.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from icestream.runtime.versions.history import History

KINDS = ("windows", "groups", "joins", "updates")
MB = 1 << 20
_SOURCE = {"name": "stream", "slack": "2 seconds", "nulls": "error"}
_BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)

#: the description of each kind of query
PLANS: dict[str, dict[str, Any]] = {
    "windows": {
        "sources": [_SOURCE],
        "time": "timestamp[us, tz=UTC]",
        "keys": ["shop string"],
        "inputs": ["x0: price double"],
        "views": [
            {
                "kind": "window",
                "range": "1 day",
                "slide": "10 seconds",
                "groupings": [["shop"]],
                "shows": ["shop"],
                "aggregates": ["count(*) as orders", "sum(x0) as revenue"],
            }
        ],
    },
    "groups": {
        "sources": [_SOURCE],
        "edges": [
            {"from": "source 0", "to": "component 0", "by": ["user"], "after": []},
            {"from": "component 0", "to": "component 1", "by": ["item1"], "after": []},
        ],
        "components": [
            [
                "0: receive edge 0",
                "1: group by user",
                "2: join where item1 <> item2 of 1, 1",
                "3: send by item1 on edge 1 of 2",
            ],
            [
                "0: receive edge 1",
                "1: group by item1, item2",
                "2: sum(r1*r2) as dot of 1",
                "3: top 3 by similarity of 2",
                "4: emit view 0 of 3",
            ],
        ],
        "views": [{"mode": "update", "result": ["item1 int64", "item2 int64", "sim double"]}],
    },
    "joins": {
        "sources": [{**_SOURCE, "name": name} for name in ("prices", "volumes", "reviews")],
        "edges": [
            {"from": f"source {n}", "to": "component 0", "by": ["symbol"], "after": []}
            for n in range(3)
        ],
        "components": [
            [
                "0: receive edge 0",
                "1: receive edge 1",
                "2: receive edge 2",
                "3: join on symbol, join 0 of 0, 1, 2",
                "4: emit view 0 of 3",
            ]
        ],
        "views": [{"mode": "append", "result": ["symbol string", "price double"]}],
    },
    "updates": {
        "sources": [_SOURCE],
        "columns": ["symbol string", "price double"],
        "views": [{"latest by": ["symbol"], "step": "price_option"}],
    },
}


def write_history(
    checkpoint: str, kind: str, versions: int = 120, *, ended: bool = True, seed: int = 1
) -> None:
    """Write the history of a query of some kind.

    With `ended` it has come to its end; otherwise this process is the one that runs it.
    """
    shards = 8 if kind == "groups" else 4
    history = History(checkpoint, {"name": kind, "plan": PLANS[kind], "shards": shards})
    history.start()
    for report in reports(kind, versions, shards, seed):
        history.progress(report)
    if ended:
        history.end(None)


def reports(kind: str, versions: int, shards: int = 4, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Yield the progress of one version after the other."""
    chance = random.Random(seed)
    jobs = len(PLANS[kind].get("components", [()]))
    counters = {"left": 0, "returned": 0, "bytes_read": 0}
    tasks = [shard // 2 for shard in range(shards)]
    log = 0
    for version in range(1, versions + 1):
        wave = 1 + 0.3 * math.sin(version / 9) + chance.uniform(-0.08, 0.08)
        phases = _phases(kind, jobs, wave)
        rows = int(200_000 * wave)
        written = [int(wave * chance.uniform(0.2, 0.5) * MB) for _ in range(shards * jobs)]
        memory = [int(min(6.5, 1 + version / 12) * MB * chance.uniform(0.9, 1.1)) for _ in written]
        log = max(0, log + sum(written) - (log // 20 if version > 30 else 0))
        moved = 0
        if version % 25 == 0:
            tasks = [*tasks[1:], tasks[0]]
            moved = shards // 2
        for name, rate in (("left", 900), ("returned", 700), ("bytes_read", 400_000)):
            counters[name] += int(rate * wave) if version > 40 else 0
        now = _BEGAN + timedelta(seconds=1.5 * version)
        yield {
            "version": version,
            "batchId": version - 1,
            "timestamp": now.isoformat(),
            "numInputRows": rows,
            "processedRowsPerSecond": rows * 1000 / phases["triggerExecution"],
            "durationMs": phases,
            "icestream": {
                "watermark": (now - timedelta(seconds=3.2 * wave)).isoformat(),
                "latestEventTime": (now - timedelta(seconds=1.2 * wave)).isoformat(),
                "lateEvents": version // 10,
                "resultRows": int(4000 * wave),
                "stateMemoryBytes": sum(memory),
                "peakMemoryBytes": int(1.12 * sum(memory)),
                "budgetBytes": 64 * MB * jobs,
                "logBytes": log,
                "segments": 40 + version % 16,
                "groups": 4000 * version,
                "parallelism": 2,
                "taskOfShard": tasks,
                "movedShards": moved,
                "eventsBytes": 0,
                "operators": [
                    {
                        "memoryBytes": sum(memory[job * shards : (job + 1) * shards]),
                        "indexBytes": sum(memory) // 9 if kind == "groups" else 0,
                        "logBytes": log // jobs,
                        "groups": 4000 * version // jobs,
                        "coldGroups": 2500 * version // jobs if kind == "groups" else 0,
                    }
                    for job in range(jobs)
                ],
                "shards": {
                    "seconds": [round(chance.uniform(0.05, 0.25) * (1 + n % 3), 4)
                                for n in range(shards * jobs)],
                    "memoryBytes": memory,
                    "writtenBytes": written,
                    "resultRows": [int(1000 * wave) for _ in written],
                    "groups": [1000 * version for _ in written],
                },
                "keyGroups": {
                    "entries": [int(rows / 256 * chance.uniform(0, 2) * (1 + 7 * (group == 77)))
                                for group in range(256)],
                    "owners": [[shard, 256 // shards] for shard in range(shards)],
                },
                **_own(kind, version, wave, counters),
            },
        }  # fmt: skip


def _phases(kind: str, jobs: int, wave: float) -> dict[str, int]:
    phases = {"ingest": int(240 * wave), "component": int(310 * wave)}
    if jobs > 1:
        phases |= {f"component {job}": int((200 + 90 * job) * wave) for job in range(jobs)}
    if kind == "windows":
        phases["leave"] = int(80 * wave)
    phases |= {"commit": 14, "tidy": 6, "sink": int(60 * wave)}
    return {**phases, "triggerExecution": sum(phases.values())}


def _own(kind: str, version: int, wave: float, counters: dict[str, int]) -> dict[str, Any]:
    """Return the facts that only queries of a kind tell."""
    if kind == "windows":
        return {
            "store": "panes",
            "estimatedBytes": {"panes": 31 * MB, "tuples": 212 * MB},
            "estimatedLogBytes": 29 * MB,
            "logToEstimate": 0.93 * wave,
        }
    if kind == "groups":
        return {"coldState": dict(counters)}
    if kind == "updates":
        stale = {
            "averageMs": 420 * wave,
            "p50Ms": 310.0,
            "p99Ms": 2400 * wave,
            "maxMs": 5200 * wave,
        }
        return {
            "updates": {
                "served": int(2100 / wave),
                "waiting": int(900 * wave),
                "keys": 3000,
                "superseded": int(8000 * wave),
                "supersededInTransit": 1200,
                "staleness": stale,
                "queueStaleness": stale,
            }
        }
    spilled = int(6 * MB * wave) if version % 20 == 0 else 0
    join = {
        "join": 0,
        "residentBytes": int((8 + version % 20 / 2) * MB),
        "bytesSpilled": spilled,
        "earlyRows": int(3000 * wave),
        "lateRows": int(2500 * wave) if version % 30 > 26 else 0,
        "owingPartitions": version % 30,
        "generations": 3 * (version % 30),
    }
    return {"bytesSpilled": spilled, "spills": version // 20, "joins": [join]}
