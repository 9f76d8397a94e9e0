"""A Spark cluster of several processes: tasks return to their state, and kills change no row.

Idea: a master and two workers on loopback, each executor with a working folder of its own. A shard
that runs on another executor than before finds no arena and is rebuilt from the checkpoint, which
all share. One query runs over the same files three times: with an executor killed in the middle of
every tenth batch, in turn; undisturbed, over the first files only; and in local mode with as many
cores. Rows are compared by count and by the sum of their hashes, version by version, with those of
local mode. A task is at home if its shards found their arenas. Two kinds of versions are counted
separately: the two versions that a kill can affect, because the state of the dead executor is gone,
and the version that spreads tasks again over a new executor, because that moves them on purpose.

Tiny batches run on the undisturbed cluster, in turn with the two bare Spark jobs that a batch of
rows from the JVM consists of (`bench.windows.batch_overhead`), and as they run by themselves: the
driver reads a few small files without a job.

    version    10        11         12 ..............  17  ............. 20
    executors   2    one dies        1 ......  2 again: tasks spread     2
    counted   at home   struck    struck   at home   spread   at home  struck

Limits: one machine with one disk: the network is the loopback device. Spark waits between attempts
to fetch from a dead executor: here a tenth of a second, by default five seconds.
"""

from __future__ import annotations

import random
import statistics
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import icestream as ice
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.rows import write_batches
from bench.windows.batch_overhead import bare_jobs, tiny_batches, write_files

if TYPE_CHECKING:
    from tests.fixtures.cluster import Cluster

#: kills, and events of each micro-batch
CASES = {Size.SMALL: (2, 5_000), Size.FULL: (20, 20_000)}
#: batches from kill to kill
EVERY = 10
#: versions that a kill can affect
STRUCK = 2
#: batches that run undisturbed on the cluster
CALM = 40
#: seconds from the end of a batch to the kill
MIDDLE = 0.3
KEYS = 2_000
SHARDS = 8
TASKS = 4
WORKERS = 2
#: versions that warm up
WARM = 4
#: required share of tasks at home
WANTED = 0.95
#: rounds of tiny batches that count, batches of each, and how many of them warm up
TINY = {Size.SMALL: (2, 24, 8), Size.FULL: (4, 48, 16)}
#: the most that a tiny batch may take, by the bare jobs
MOST_BY_BARE = 1.3


@dataclass
class ClusterRun:
    """Rows of each version, and the reports of its tasks."""

    #: count of the rows of each version, and the sum of their hashes
    rows: dict[int, tuple[int, int]] = field(default_factory=dict)
    reports: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    #: versions after whose end an executor was killed
    kills: list[int] = field(default_factory=list)

    def at_home(self, *, everywhere: bool = False) -> float:
        """Return the share of tasks whose shards found their arenas.

        With `everywhere`, include versions that lost an executor or that spread tasks again.
        """
        out = set() if everywhere else self.struck | self.spread
        own = [
            each["icestream"]
            for version, each in self.reports.items()
            if version > 1 and version not in out
        ]
        away: int = sum(len({r["taskOfShard"][s] for s in r["rebuiltShards"]}) for r in own)
        tasks: int = sum(each["parallelism"] for each in own)
        return 1 - away / tasks

    @property
    def struck(self) -> set[int]:
        """Return the versions that a kill can affect."""
        found = {kill + after for kill in self.kills for after in range(1, STRUCK + 1)}
        return found & self.reports.keys()

    @property
    def spread(self) -> set[int]:
        """Return the versions in which no executor had as many tasks as the busiest one before."""
        return {
            version
            for version in self.reports.keys() - self.struck
            if version - 1 in self.reports and self._most(version) < self._most(version - 1)
        }

    def _most(self, version: int) -> int:
        """Return the number of tasks of the executor with the most."""
        own = self.reports[version]["icestream"]
        executors = dict(zip(own["taskOfShard"], own["shards"]["executors"], strict=True))
        return max(Counter(executors.values()).values())

    @property
    def milliseconds(self) -> float:
        """Return the median time of a batch."""
        timed = sorted(self.reports.items())[WARM:]
        took: list[float] = [each["durationMs"]["triggerExecution"] for _, each in timed]
        return statistics.median(took)

    @property
    def longest_after_kill(self) -> float | None:
        """Return the longest batch that lost an executor, in milliseconds."""
        took = [self.reports[v]["durationMs"]["triggerExecution"] for v in self.struck]
        return max(took, default=None)


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run the query on the cluster, undisturbed and with kills, and in local mode."""
    kills, events = CASES[size]
    folder = scratch(workspace(), "cluster")
    write_batches(folder / "in", EVERY * (kills + 1), events, keys=KEYS, span=5_000_000, seed=23)
    (folder / "first").mkdir()
    for path in sorted((folder / "in").iterdir())[:CALM]:
        (folder / "first" / path.name).hardlink_to(path)
    progress.plan(5)
    progress.step("starting master and workers")
    from tests.fixtures.cluster import Cluster  # noqa: PLC0415 - needs Spark

    with Cluster(WORKERS) as cluster:
        spark = cluster.session("cluster")
        progress.step("tiny batches")
        tiny = _tiny(spark, folder / "tiny", size)
        progress.step("undisturbed")
        calm = _run(spark, folder / "first", folder / "undisturbed")
        progress.step(f"{kills} kills")
        killed = _run(spark, folder / "in", folder / "killed", _Killer(cluster, spark, kills))
        spark.stop()
    progress.step("local mode")
    spark = ice.local_session("cluster", cores=WORKERS)
    local = _run(spark, folder / "in", folder / "local")
    spark.stop()
    figures = {
        "workers": WORKERS,
        "tasks": TASKS,
        "batches": len(killed.reports),
        "events_per_batch": events,
        "rows": sum(count for count, _ in killed.rows.values()),
        "kills": len(killed.kills),
        "spread_again": len(killed.spread),
        "at_home": {
            "undisturbed": calm.at_home(),
            "after kills": killed.at_home(),
            "all versions": killed.at_home(everywhere=True),
        },
        "tiny_batch_ms": tiny,
        "longest_batch_after_kill_ms": killed.longest_after_kill,
        "batch_ms": {
            "cluster": calm.milliseconds,
            "cluster, killed": killed.milliseconds,
            "local mode": local.milliseconds,
        },
        "events_per_second": {
            name: 1000 * events / run.milliseconds
            for name, run in (("cluster", calm), ("cluster, killed", killed), ("local mode", local))
        },
    }
    bars = (
        Bar.at_least("tasks at home, undisturbed", WANTED, calm.at_home()),
        Bar.at_least("tasks at home, executors lost and come", WANTED, killed.at_home()),
        Bar.at_most(
            "tiny batch by bare jobs of its shape",
            MOST_BY_BARE,
            tiny["of rows"] / tiny["bare jobs"],
        ),
        Bar.at_least("executors killed", kills, len(killed.kills)),
        Bar.at_most("versions with other rows, undisturbed", 0, _others(calm, local, CALM)),
        Bar.at_most("versions with other rows, killed", 0, _others(killed, local, len(local.rows))),
    )
    return Measurement(figures, bars)


def _others(run: ClusterRun, right: ClusterRun, versions: int) -> int:
    """Return how many of the first `versions` versions have wrong rows, or none."""
    wanted = range(1, 1 + min(versions, len(right.rows)))
    return sum(run.rows.get(version) != right.rows[version] for version in wanted)


def _tiny(spark: Any, folder: Path, size: Size) -> dict[str, float]:
    """Return the median milliseconds of tiny batches, and of bare jobs of the same shape.

    The first round of each warms up the machine code of driver and executors and does not count;
    in the others, every second begins with what the one before ended with.
    """
    rounds, batches, warm = TINY[size]
    write_files(folder / "in", batches)
    apart = {"localDir": "arenas"}
    ways: dict[str, Callable[[int], list[float]]] = {
        "bare jobs": lambda number: bare_jobs(spark, folder, number),
        "of rows": lambda number: tiny_batches(spark, folder, 2 * number, apart),
        "of files": lambda number: tiny_batches(
            spark, folder, 2 * number + 1, {**apart, "input": "auto"}
        ),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1 + rounds):
        for name in list(ways)[:: 1 if number % 2 else -1]:
            found = ways[name](number)
            took[name] += found[warm:] if number else []
    return {name: statistics.median(each) for name, each in took.items()}


class _Killer:
    """Kills executors in turn, each in the middle of a batch."""

    def __init__(self, cluster: Cluster, spark: Any, kills: int) -> None:
        self._cluster = cluster
        self._spark = spark
        self._kills = kills
        self._dice = random.Random(7)

    def after(self, version: int) -> bool:
        """Record that a version has ended; kill a little later if it is time."""
        if version % EVERY or version // EVERY > self._kills:
            return False
        # the executor killed before must be back, or both would be gone
        self._cluster.await_registered(self._spark)
        worker = version // EVERY % WORKERS
        later = self._dice.random() * MIDDLE
        threading.Timer(later, self._cluster.kill_executor, (worker,)).start()
        return True


def _run(spark: Any, source: Path, checkpoint: Path, killer: _Killer | None = None) -> ClusterRun:
    """Run the query to the end of its files."""
    found = ClusterRun()
    running: list[Any] = []

    def take(rows: Any, number: int) -> None:
        # sinks count versions from 0, reports from 1
        version = number + 1
        texts = ("count(*)", "coalesce(sum(xxhash64(*) % 1000003), 0)")
        found.rows[version] = tuple(rows.selectExpr(*texts).first())
        if version % (5 * EVERY) == 0:
            # a query keeps only its last hundred reports
            _note(found, running[0])
        if killer is not None and killer.after(version):
            found.kills.append(version)

    stream = (
        spark.readStream.schema("ts timestamp, key bigint, value bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(source))
    )
    windows = ice.stream(stream, time="ts", slack="1 second").window("1 minute", slide="5 seconds")
    result = windows.groupBy("key").agg(ice.count().alias("n"), ice.max("value").alias("top"))
    query = (
        result.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        # in the working folder of each executor
        .option("localDir", "arenas")
        .option("rebalance", "off")
        .memory("256 MB")
        .shards(SHARDS)
        .parallelism(TASKS)
        .trigger(processingTime="0 seconds")
        .start()
    )
    running.append(query)
    query.processAllAvailable()
    query.stop()
    _note(found, query)
    return found


def _note(found: ClusterRun, query: Any) -> None:
    found.reports |= {each["version"]: each for each in query.recentProgress}


def plot(figures: Figures, target: Path) -> None:
    """Draw the shares of tasks at home, and batch times."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - measuring needs no plots

    chart, (homes, times) = plt.subplots(1, 2, figsize=(9, 3.2))
    shares = figures["at_home"]
    homes.bar(list(shares), list(shares.values()), color="#4878b0")
    homes.axhline(WANTED, color="gray", lw=1, ls="--")
    homes.set(title="tasks at the executor with their arenas", ylim=(0, 1.05))
    took = figures["batch_ms"]
    times.bar(list(took), list(took.values()), color="#c9d8ea")
    times.set(title=f"ms of a batch of {figures['events_per_batch']:,} events")
    chart.tight_layout()
    chart.savefig(target, dpi=120)
    plt.close(chart)


BENCH = Bench(
    "cluster",
    "tasks come back to the executor that holds their state, and 20 killed executors cost no row",
    measure,
    plot,
)
