"""User code with state by key: Icestream's two forms against Spark's, its store against RocksDB.

Idea: the same running count and sum of every key, written as user code, once for Spark's
`transformWithStateInPandas` and twice for Icestream: called with many keys at a time, and with one.
All read the same files in the same batches, write Parquet, commit every batch and have two cores;
rates are measured once warm. Icestream also runs with larger batches, only to show the remaining
potential. Then, in one process, the store of groups alternates with RocksDB (`rocksdb_state`) in
the memory of a query and in an eighth of it; the faster of RocksDB's two orders of keys counts.

Cost: Spark makes two calls to its state server for a key and batch, which limits its input rate.

Limits: Spark emits a row for a key once in a batch, Icestream once in a chunk of it, which is more
rows; the last row of each key is compared. Size `small` has a tenth of the keys and cold batches.

References: `Bench` in `registry`; the numbers and how to repeat them are in `docs/performance.md`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench import systems
from bench.cold.keyed_rows import KeyedStream
from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from icestream.core.arrays import Floats, Ints
from icestream.core.units import parse_bytes

CORES = 2
SEED = 12_345
SLACK = "2 seconds"
MEMORY = "512 MB"
#: memory of the two stores that are compared in one process
STORE_MEMORY = (MEMORY, "64 MB")

LEAST_VECTORISED, LEAST_PER_GROUP, LEAST_STORE = 100, 10, 3


@dataclass(frozen=True, slots=True)
class Case:
    """One system and its input."""

    name: str
    module: str
    form: str
    files_per_trigger: int
    batches: int
    #: batches that warm up and do not count
    skip: int

    @property
    def files(self) -> int:
        """How many files are read."""
        return self.files_per_trigger * self.batches


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of each system's run."""

    keys: int
    rows_per_file: int
    cases: tuple[Case, ...]
    #: batches of the stores in one process, and those that warm up
    store_batches: int
    store_skip: int


def _cases(
    files: int, spark: tuple[int, int], ours: tuple[int, int], large: tuple[int, int, int]
) -> tuple[Case, ...]:
    peer, icestream = "peers.spark_user_state", "cold.icestream_user_state"
    return (
        Case(SPARK, peer, "", files, *spark),
        Case(VECTORISED, icestream, "vectorised", files, *ours),
        Case(PER_GROUP, icestream, "per group", files, *ours),
        Case(LARGE, icestream, "vectorised", *large),
    )


SPARK, VECTORISED, PER_GROUP = "spark", "vectorised", "per group"
LARGE = "vectorised, large batches"

SCALES = {
    Size.SMALL: Scale(10_000, 5_000, _cases(2, (3, 1), (6, 2), (8, 4, 2)), 8, 3),
    Size.FULL: Scale(100_000, 50_000, _cases(2, (3, 1), (30, 6), (40, 8, 2)), 30, 5),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run the systems on the same files, then the stores, and compare them."""
    scale, root = SCALES[size], workspace()
    progress.plan(1 + len(scale.cases) + len(STORE_MEMORY))
    progress.step("writing the events")
    stream = KeyedStream("totals", SEED, scale.keys)
    events = root / "artifacts" / "bench" / "events"
    most = max(case.files for case in scale.cases)
    every = stream.write_files(events, most, scale.rows_per_file)
    work = scratch(root, "user_state")
    rates: dict[str, Any] = {}
    wrong: dict[str, int] = {}
    for case in scale.cases:
        taken = prefix(every, case.files, work / f"{_folder(case)}-input")
        found = systems.peer(lambda c=case, t=taken: _run(c, t, work, progress), progress)  # type: ignore[misc]
        rates |= found
        if found.get(case.name):
            expected = stream.totals(0, case.files * scale.rows_per_file)
            wrong[case.name] = wrong_keys(work / _folder(case), *expected)
    stores = systems.peer(lambda: _stores(scale, work, progress), progress)
    figures = summarise(rates, stores, wrong)
    return Measurement(figures, judge(figures))


def summarise(rates: Figures, stores: Figures, wrong: Figures) -> dict[str, Any]:
    """Collect the rates (rows per second, and key updates per second)."""
    peer = rates.get(SPARK)
    figures: dict[str, Any] = {
        name: rates.get(name) for name in (SPARK, VECTORISED, PER_GROUP, LARGE)
    }
    for name in (VECTORISED, PER_GROUP, LARGE):
        figures[f"ratio, {name}"] = _ratio(rates.get(name), peer)
    for memory in STORE_MEMORY:
        found = {
            name: stores.get(f"{memory}|{name}", {})
            for name in ("icestream", "rocksdb", "rocksdb sorted")
        }
        eps = {name: result.get("eps") for name, result in found.items()}
        best = max((eps[n] for n in ("rocksdb", "rocksdb sorted") if eps[n]), default=None)
        figures[f"stores, {memory}"] = {
            **{f"{name} updates/s": each for name, each in eps.items()},
            "ratio to the faster RocksDB": _ratio(eps["icestream"], best),
            "RocksDB's time inside it": found["rocksdb sorted"].get("inside_share"),
        }
    figures["wrong_keys"] = dict(wrong)
    figures["wrong_keys"] |= {name: result["wrong"] for name, result in stores.items()}
    return figures


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    expected = len((SPARK, VECTORISED, PER_GROUP, LARGE)) + 3 * len(STORE_MEMORY)
    agree = sum(count == 0 for count in figures["wrong_keys"].values())
    return (
        Bar.at_least("vectorised / Spark", LEAST_VECTORISED, figures[f"ratio, {VECTORISED}"]),
        Bar.at_least("per group / Spark", LEAST_PER_GROUP, figures[f"ratio, {PER_GROUP}"]),
        *(
            Bar.at_least(
                f"store / faster RocksDB, {memory}",
                LEAST_STORE,
                figures[f"stores, {memory}"]["ratio to the faster RocksDB"],
            )
            for memory in STORE_MEMORY
        ),
        Bar.at_least("runs that agree", expected, agree),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw rates of the queries and of the stores as bars."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    drawing = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = drawing.subplots(1, 2)
    queries = {name: figures[name] or math.nan for name in (SPARK, PER_GROUP, VECTORISED, LARGE)}
    drawn = left.barh(list(queries), list(queries.values()))
    left.bar_label(drawn, [f"{eps:,.0f}" for eps in queries.values()], fontsize=8)
    left.set_xscale("log")
    left.set_xlabel("rows per second")
    left.set_title("running totals by key, 2 cores")
    stores = {
        f"{name.removesuffix(' updates/s')}, {memory}": eps or math.nan
        for memory in STORE_MEMORY
        for name, eps in figures[f"stores, {memory}"].items()
        if name.endswith("updates/s")
    }
    drawn = right.barh(list(stores), [eps / 1e3 for eps in stores.values()])
    right.bar_label(drawn, [f"{eps / 1e3:,.0f}" for eps in stores.values()], fontsize=8)
    right.set_xlabel("thousand updates per second")
    right.set_title("the stores alone, one process")
    for axes in (left, right):
        axes.invert_yaxis()
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


def prefix(folder: Path, files: int, target: Path) -> Path:
    """Link the first files of a folder into another one, so that modification times stay."""
    target.mkdir(parents=True)
    for path in sorted(folder.glob("*.parquet"))[:files]:
        (target / path.name).hardlink_to(path)
    return target


def wrong_keys(folder: Path, keys: Ints, n: Ints, total: Floats) -> int:
    """Count the keys whose last totals, those with the highest count, are wrong."""
    files = sorted(folder.glob("**/*.parquet"))
    columns = [pq.read_table(file, columns=["key", "n", "total"]) for file in files]
    key, count, amount = (
        np.concatenate([np.asarray(table[name]) for table in columns])
        for name in ("key", "n", "total")
    )
    order = np.lexsort((count, key))
    last = order[np.append(key[order][1:] != key[order][:-1], True)]
    found = dict(zip(key[last].tolist(), zip(count[last], amount[last], strict=True), strict=True))
    wanted = dict(zip(keys.tolist(), zip(n, total, strict=True), strict=True))
    return sum(found.get(each) != wanted.get(each) for each in found.keys() | wanted.keys())


def _run(case: Case, folder: Path, work: Path, progress: ProgressLog) -> dict[str, float | None]:
    """Run one system over its files, in a process of its own."""
    run = {
        "name": case.name,
        "form": case.form,
        "slack": SLACK,
        "memory": MEMORY,
        "input": str(folder),
        "files_per_trigger": case.files_per_trigger,
        "skip": case.skip,
        "output": str(work / _folder(case)),
        "checkpoint": f"{work / _folder(case)}-checkpoint",
    }
    command = [sys.executable, "-m", f"bench.{case.module}"]
    found = systems.watched(command, {"cores": CORES, "runs": [run]}, case.name, progress)
    return {result["name"]: result["eps"] for result in found}


def _stores(scale: Scale, work: Path, progress: ProgressLog) -> dict[str, Any]:
    """Run the stores in one process, once for each size of memory."""
    rows = scale.cases[0].files_per_trigger * scale.rows_per_file
    command = [sys.executable, "-m", "bench.cold.rocksdb_state"]
    found: dict[str, Any] = {}
    for memory in STORE_MEMORY:
        run = {
            "name": memory,
            "seed": SEED,
            "keys": scale.keys,
            "rows": rows,
            "batches": scale.store_batches,
            "skip": scale.store_skip,
            "memory": parse_bytes(memory),
            "folder": str(work / "stores"),
        }
        for result in systems.watched(command, {"runs": [run]}, "stores", progress):
            found[result["name"]] = result
    return found


def _folder(case: Case) -> str:
    return case.name.replace(", ", "-").replace(" ", "-")


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over and under else None


BENCH = Bench(
    "user-state",
    "user code with state runs 100 times as fast as Spark's by columns, 10 times by group",
    measure,
    plot,
)
