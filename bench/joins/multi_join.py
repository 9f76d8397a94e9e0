"""Three joins over five streams: Icestream against Spark's chained joins and Flink's regular joins.

Idea: A.1 = B.1 = C.1, then C.2 = D.1, then D.2 = E.1, without a bound on time, the one form of the
query that all three systems run as it is: each stores every row it ever read. Icestream and Spark
read the same files in the same batches, write Parquet and commit every batch; Flink generates the
same rows itself, drops its results and takes a checkpoint every 5 s. All have two cores, Spark and
Flink a RocksDB store. Rates are of input rows, of all streams together, once warm; Icestream's and
Flink's until the last result is out, including clean-up. Icestream orders the joins by their
expected state; Spark takes them as written, so it also runs with the order that stores the fewest
rows here, written by hand. Icestream also runs with smaller batches, and in an eighth of the
memory, where most of its state has to be spilled. All results of every run are compared with what
numpy expects (`multi_join_agreement`); Flink writes those of a shorter run.

Cost: late rows have as many results as early ones, so runs of different lengths are comparable;
    Spark
gets the fewest rows.

Limits: in size `small` batches are small and cold, so that fixed costs per batch weigh more than
    the
joins: do not quote it.

References: `Bench` in `registry`; the numbers and how to repeat them are in `docs/performance.md`.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench import systems
from bench.cold.user_state import prefix
from bench.harness import scratch, workspace
from bench.joins import multi_join_agreement
from bench.joins.multi_join_agreement import ExpectedResults
from bench.multi_join_rows import KEYS, MIX, RANGE, STREAMS
from bench.peer_environments import FLINK as FLINK_PEER
from bench.peer_environments import python_of
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.rows import A, P

CORES = 2
LEAST_RATIO_SPARK, LEAST_RATIO_FLINK = 20, 2

SPARK, ICESTREAM, SMALL, PRESSED = "spark", "icestream", "small batches", "an eighth of the memory"
#: Spark with joins in the order that stores the fewest intermediate rows
REORDERED = "spark, other order"
FLINK = "flink"


@dataclass(frozen=True, slots=True)
class Case:
    """One system and its input."""

    name: str
    module: str
    memory: str
    #: rows of each stream in a batch
    batch: int
    batches: int
    #: batches that warm up and do not count
    skip: int

    @property
    def rows(self) -> int:
        """Rows of each stream that it reads."""
        return self.batch * self.batches


@dataclass(frozen=True, slots=True)
class FlinkVariant:
    """One configuration of Flink."""

    name: str
    mini_batch: bool = False
    #: whether one operator joins all streams that share a key
    multi_join: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of each system's run."""

    cases: tuple[Case, ...]
    #: rows of each stream, and of each stream in the run that is compared
    flink_rows: int
    flink_compared: int
    flink_variants: tuple[FlinkVariant, ...]
    #: memory of Flink's store
    flink_memory: str
    #: whether every query gets a process of its own
    apart: bool

    @property
    def compared(self) -> int:
        """Runs whose results are compared."""
        return len(self.cases) + 1


PLAIN = FlinkVariant("plain")
OURS, THEIRS = "joins.icestream_multi_join", "peers.spark_multi_join"

SCALES = {
    Size.SMALL: Scale(
        (
            Case(SPARK, THEIRS, "", 20_000, 2, 1),
            Case(REORDERED, THEIRS, "", 20_000, 2, 1),
            Case(ICESTREAM, OURS, "256 MB", 20_000, 3, 1),
            Case(SMALL, OURS, "256 MB", 4_000, 5, 2),
            Case(PRESSED, OURS, "32 MB", 20_000, 3, 1),
        ),
        20_000,
        8_000,
        (PLAIN,),
        "256m",
        apart=False,
    ),
    Size.FULL: Scale(
        (
            Case(SPARK, THEIRS, "", 120_000, 3, 1),
            Case(REORDERED, THEIRS, "", 120_000, 3, 1),
            Case(ICESTREAM, OURS, "2 GB", 120_000, 6, 2),
            Case(SMALL, OURS, "1 GB", 40_000, 6, 2),
            Case(PRESSED, OURS, "256 MB", 120_000, 6, 2),
        ),
        200_000,
        40_000,
        (PLAIN, FlinkVariant("mini-batch", True), FlinkVariant("multi-join", False, True)),
        "1g",
        apart=True,
    ),
}


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run all systems on the same rows and compare them."""
    scale, root = SCALES[size], workspace()
    progress.plan(1 + len(scale.cases) + 1 + len(scale.flink_variants))
    work = scratch(root, "multi_join")
    runs: dict[str, dict[str, Any]] = {}
    results: dict[str, tuple[ExpectedResults, ExpectedResults]] = {}
    progress.step("writing the rows")
    plans = {case.name: _plan(case, scale, root, work) for case in scale.cases}
    for module in (THEIRS, OURS):
        mine = [plans[case.name] for case in scale.cases if case.module == module]
        for group in systems.grouped(mine, scale.apart):
            runs |= systems.peer(
                lambda m=module, g=group: _run(m, g, progress),  # type: ignore[misc]
                progress,
            )
    for case in scale.cases:
        if case.name in runs:
            results[case.name] = (
                multi_join_agreement.of_parquet(work / _folder(case)),
                multi_join_agreement.expected(case.rows),
            )
    flink = systems.peer(lambda: _flink(scale, root, work, progress), progress)
    if "compared" in flink:
        results[FLINK] = (
            multi_join_agreement.of_csv(work / FLINK),
            multi_join_agreement.expected(scale.flink_compared),
        )
    figures = summarise(runs, flink, results)
    versions = {FLINK: flink["version"]} if "version" in flink else {}
    return Measurement(figures, judge(figures, scale.compared), versions)


def summarise(
    runs: Figures, flink: Figures, results: dict[str, tuple[ExpectedResults, ExpectedResults]]
) -> dict[str, Any]:
    """Put the rates (input rows per second) side by side."""
    rates: dict[str, float | None] = {name: run["eps"] for name, run in runs.items()}
    variants: dict[str, float] = flink.get("rates", {})
    best = max(variants.values(), default=None)
    mine, spark = rates.get(ICESTREAM), rates.get(SPARK)
    return {
        "icestream_eps": mine,
        "icestream_small_eps": rates.get(SMALL),
        "icestream_pressed_eps": rates.get(PRESSED),
        "spark_eps": spark,
        "spark_reordered_eps": rates.get(REORDERED),
        "flink_eps": best,
        "flink_variants_eps": variants,
        "ratio_spark": mine / spark if mine and spark else None,
        "ratio_flink": mine / best if mine and best else None,
        "agree": [name for name, (found, wanted) in results.items() if found == wanted],
        "results": {name: asdict(found) for name, (found, _) in results.items()},
        "spilling": {name: run["spilling"] for name, run in runs.items() if "spilling" in run},
        "phases": {name: run["phases"][-2] for name, run in runs.items() if "phases" in run},
    }


def judge(figures: Figures, compared: int) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    return (
        Bar.at_least("ratio_spark", LEAST_RATIO_SPARK, figures["ratio_spark"]),
        Bar.at_least("ratio_flink", LEAST_RATIO_FLINK, figures["ratio_flink"]),
        Bar.at_least("runs that agree", compared, len(figures["agree"])),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw the rates as bars on a logarithmic scale."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    bars = {
        "Icestream": figures["icestream_eps"] or 0.0,
        f"Icestream, {SMALL}": figures["icestream_small_eps"] or 0.0,
        f"Icestream, {PRESSED}": figures["icestream_pressed_eps"] or 0.0,
        "Flink": figures["flink_eps"] or 0.0,
        "Spark": figures["spark_eps"] or 0.0,
        "Spark, other order": figures["spark_reordered_eps"] or 0.0,
    }
    drawing = Figure(figsize=(7, 3), layout="constrained")
    axes = drawing.subplots()
    drawn = axes.barh(list(bars), list(bars.values()))
    axes.bar_label(drawn, [f"{eps:,.0f}" for eps in bars.values()], fontsize=8)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("input rows per second")
    axes.set_title("Three joins over five streams, all rows kept, 2 cores")
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


# -- running -------------------------------------------------------------------------------------


def _plan(case: Case, scale: Scale, root: Path, work: Path) -> systems.Run:
    """Return the plan of a system: its files, one of each stream per batch, and its output."""
    events = root / "artifacts" / "bench" / "events"
    files = max(each.batches for each in scale.cases if each.batch == case.batch)
    inputs = {}
    for stream in STREAMS:
        every = stream.write_files(events, files, case.batch)
        mine = work / f"{_folder(case)}-{stream.name}"
        inputs[stream.name] = str(prefix(every, case.batches, mine))
    return {
        "name": case.name,
        "memory": case.memory,
        "inputs": inputs,
        "files_per_trigger": 1,
        "shards": CORES,
        "reordered": case.name == REORDERED,
        "skip": case.skip,
        "output": str(work / _folder(case)),
        "checkpoint": f"{work / _folder(case)}-checkpoint",
    }


def _run(module: str, runs: list[systems.Run], progress: ProgressLog) -> dict[str, dict[str, Any]]:
    """Run a system in a process of its own; return its measurements by the names of its runs."""
    command = [sys.executable, "-m", f"bench.{module}"]
    plan = {"cores": CORES, "runs": runs}
    found = systems.watched(command, plan, "three joins", progress)
    return {result["name"]: result for result in found}


def _flink(scale: Scale, root: Path, work: Path, progress: ProgressLog) -> dict[str, Any]:
    """Run Flink; rates by variant, its version, and whether there are results to compare."""
    python = python_of(FLINK_PEER, root, progress)
    # -E: ignore this environment's PYTHONPATH
    command = [str(python), "-E", str(Path(__file__).parents[1] / "peers" / "flink_multi_join.py")]
    common = {
        "cores": CORES, "backend": "rocksdb", "managed_memory": scale.flink_memory,
        "checkpoint_every": "5 s",
    }  # fmt: skip
    compared = {
        **common, "name": "compared", "rows": scale.flink_compared, "mini_batch": False,
        "output": str(work / FLINK),
    }  # fmt: skip
    results = multi_join_agreement.expected(scale.flink_rows).count
    measured = [
        {
            **common,
            "name": variant.name,
            "rows": scale.flink_rows,
            "results": results,
            "mini_batch": variant.mini_batch,
            "options": {"table.optimizer.multi-join.enabled": str(variant.multi_join).lower()},
        }
        for variant in scale.flink_variants
    ]
    constants = {"p": P, "a": A, "range": RANGE, "mix": MIX}
    streams = [
        {"name": stream.name, "seed": stream.seed, "keys": [KEYS[join] for join in stream.joins]}
        for stream in STREAMS
    ]
    found: dict[str, Any] = {"rates": {}}
    for run in (compared, *measured):
        plan = {"constants": constants, "streams": streams, "runs": [run]}
        for result in systems.watched(command, plan, FLINK, progress):
            found["version"] = result["version"]
            if run is compared:
                found["compared"] = True
            else:
                found["rates"][result["name"]] = result["eps"]
    return found


def _folder(case: Case) -> str:
    return case.name.replace(",", "").replace(" ", "-")


BENCH = Bench(
    "multi-join",
    "three joins over five streams take 20 times Spark's and twice Flink's input rate",
    measure,
    plot,
)
