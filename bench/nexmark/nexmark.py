"""Nexmark: all statements by Icestream, beside Flink SQL and Spark where they can express them.

Idea: what is compared is what a user sees: events a second from files to results, once warm, on two
cores, with a commit for every batch or a checkpoint every ten seconds. All systems read the same
rows as the same text, since Flink's package reads no Parquet; the time of reading is part of the
time of each system, and is taken off none. Taking it off one side only would compare a whole with a
part; of both sides, it would need a rate of reading that no system shows by itself, as each reads
only the columns that a statement needs, while it computes. A rate is of all events in the streams
that a statement reads. Flink's backend and mini-batches are searched on three statements and then
fixed. Before that, Icestream and Flink run all statements over fewer events, and their rows are
compared with DuckDB's; receiving rows from Flink takes long, so they are of fewer events still.

A statement whose answer is a table by key, of which Flink upserts or retracts rows, runs in mode
`now`: a version writes the keys that changed, as a mini-batch of Flink does, not each instant of
the past, which no other system reports; the table at the end is compared. Statements over windows
write final rows (`append`), as Flink does; all others report `changes`. At full size a
batch has 500,000 events, up to two seconds of work, as long as a mini-batch of Flink may wait;
Flink commits every ten seconds. Bars are judged there. As Icestream then commits about ten times as
often, it also runs the statements with state in batches of twice as many events. Statements that
read no bids, one event of 12, read those of eight times as many events, in batches of as many rows.
A statement has `PATIENCE` seconds; one that takes longer is listed as not measured. The full
size is meant to take less than 20 minutes on two idle cores; `--only q5,q7` measures some of them.

Limits: Icestream and Spark write results as Parquet, Flink always discards them, and Spark does for
tables by key, as it cannot write changes to files. Spark has no q4, which aggregates an aggregate
that changes, and no q6; statements that it does not read as published are written anew for it
(`bench/peers/spark_nexmark.py`). Flink has no q6
(OVER over rows that change), and q13 needs a table that it can look up. Its rows of q12 are not
compared: at the end of its input it drops windows of processing time. Its averages of whole numbers
are whole numbers, and q9 is a stream of new rows by key. Statements of a system run in one process
after the other, warm from the first on; peak memory is that of all its processes, and memory that a
JVM does not return counts for the statements after. In size `small` batches are small, so that
fixed costs per batch weigh more than the statements, and Flink ends many of them before a steady
rate can be read off.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

from bench import systems
from bench.harness import scratch, workspace
from bench.nexmark.events import Nexmark
from bench.peer_environments import FLINK as FLINK_PEER
from bench.peer_environments import python_of
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from icestream.core.errors import DefinitionError

CORES = 2
MEMORY = "512 MB"
SKIP = 1
#: events and batches
SCALES = {Size.SMALL: (120_000, 4), Size.FULL: (3_000_000, 6)}
RATE = 10_000
#: files of a batch where Icestream commits less often
TOGETHER = 2
#: how many times as many events there are for statements that read no bids, and their batches:
#: as many persons and auctions as there are events in a batch of all
LONGER, LONGER_BATCHES = 8, 4
#: seconds that a statement may take
PATIENCE = 45.0
#: events, events a second and batches of the runs whose rows are compared: no two at one time
COMPARED, SLOWLY, PARTS = 20_000, 200, 3
#: events, and events a second, of those compared with Flink's
COMPARED_WITH_FLINK, MORE_SLOWLY = 2_000, 20

ICESTREAM, SPARK, FLINK = "icestream", "spark", "flink"
MODULES = {ICESTREAM: "nexmark.icestream_nexmark", SPARK: "peers.spark_nexmark"}
STATEMENTS = tuple(f"q{number}" for number in range(23))
STREAMS = ("person", "auction", "bid")
#: statements that Spark alone runs, also for Icestream; the others have state
STATELESS = ("q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22")
BY_SPARK = tuple(name for name in STATEMENTS if name not in ("q4", "q6"))
BY_FLINK = tuple(name for name in STATEMENTS if name not in ("q6", "q13"))
COMPARED_OF_FLINK = tuple(name for name in BY_FLINK if name != "q12")
#: statements of which Spark has rows that later events close
CLOSED_LATER = ("q5", "q7", "q8", "q9", "q11")
#: columns of the key where Flink reports only the new rows
KEYS = {"q9": (0,)}
#: where Flink's configuration is searched, and the configurations; the first if nothing is searched
SEARCHED = ("q4", "q5", "q17")
CONFIGURATIONS = {
    f"{label}, mini-batch {word}": {"backend": backend, "mini_batch": word == "on"}
    for label, backend in systems.BACKENDS.items()
    for word in ("on", "off")
}
#: statements that run again with a tenth of their state as their memory
IN_A_TENTH = ("q4", "q20")
LEAST_MEMORY = 8 << 20
LEAST_OF_SPARK, LEAST_OF_FLINK, LEAST_ALONE = 10, 3, 0.9

Runs = dict[str, dict[str, Any]]


def measure(size: Size, progress: ProgressLog, only: Sequence[str] = STATEMENTS) -> Measurement:
    """Run all systems on the same events."""
    from bench.nexmark.running import closing, for_flink, written_tables  # noqa: PLC0415 - Spark

    count, batches = SCALES[size]
    work = scratch(workspace(), "nexmark")
    names = _among(STATEMENTS, only)
    asked = {ICESTREAM: names, SPARK: _among(BY_SPARK, only), FLINK: _among(BY_FLINK, only)}
    in_a_tenth, compared = _among(IN_A_TENTH, only), _among(COMPARED_OF_FLINK, only)
    searched = (len(CONFIGURATIONS) - 1) * len(_among(SEARCHED, only))
    with_state = tuple(name for name in names if name not in STATELESS)
    measured = sum(map(len, asked.values())) + len(with_state) + len(in_a_tenth) + searched
    progress.plan(1 + measured + len(names) + len(asked[SPARK]) + len(compared))
    progress.step("writing the events")
    for folder in ("few", "closed"):
        written_tables(Nexmark(COMPARED, rate=SLOWLY), work / folder / "in", PARTS)
    closing(work / "closed" / "in", COMPARED)
    fewer = Nexmark(COMPARED_WITH_FLINK, rate=MORE_SLOWLY).tables()
    for_flink(fewer, work / "fewer" / "csv")
    rate = RATE if size is Size.FULL else 1_000
    lengths = {}
    for part, times, parts, streams in (
        ("bids", 1, batches, STREAMS),
        ("no bids", LONGER, LONGER_BATCHES, ("person", "auction")),
    ):
        events = Nexmark(times * count, rate=rate)
        tables = written_tables(events, work / part / "in", parts, streams)
        for_flink(tables, work / part / "csv")
        lengths[part] = {name: len(tables[name]) for name in streams}
        del tables
    on_spark = _OnSpark(lengths, work, progress)
    different = {
        system: on_spark.run(system, asked[system], compared=True) for system in (ICESTREAM, SPARK)
    }
    wrong = {
        **{
            system: {name: each["other_rows"] for name, each in made.items()}
            for system, made in different.items()
        },
        FLINK: systems.peer(lambda: _flinks_rows(fewer, compared, work, progress), progress),
    }
    runs = {system: on_spark.run(system, asked[system]) for system in (ICESTREAM, SPARK)}
    held = {name: runs[ICESTREAM].get(name, {}).get("state_bytes", 0) for name in in_a_tenth}
    memory = {name: max(LEAST_MEMORY, size // 10) for name, size in held.items()}
    tenth = on_spark.run(ICESTREAM, in_a_tenth, memory)
    larger = on_spark.run(ICESTREAM, with_state, together=TOGETHER)
    flink = _Flink(lengths, work, progress)
    runs[FLINK] = systems.peer(lambda: flink.searched(asked[FLINK]), progress)
    figures = (
        summarise(runs, names)
        | in_larger_batches(larger, runs.get(FLINK, {}))
        | {
            "not_measured": {
                system: [name for name in names if name not in runs[system]]
                for system, names in asked.items()
            },
            "other_rows": wrong,
            "tenth": {
                name: {"eps": each["eps"], "memory": memory[name], "state_bytes": held[name]}
                for name, each in tenth.items()
            },
        }
    )
    return Measurement(figures, judge(figures))


def _among(names: Sequence[str], chosen: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in chosen)


@dataclass(frozen=True)
class _OnSpark:
    """Statements by Icestream and by Spark alone."""

    #: rows of each stream, by folder
    lengths: Mapping[str, Mapping[str, int]]
    work: Path
    progress: ProgressLog

    def run(
        self,
        system: str,
        names: tuple[str, ...],
        memory: Mapping[str, int] | None = None,
        *,
        compared: bool = False,
        together: int = 1,
    ) -> Runs:
        """Run statements one after the other in one process."""
        kind = "compared" if compared else f"output-{together}" if memory is None else "tenth"

        def source(name: str) -> str:
            if not compared:
                return part_of(name)
            return "closed" if system == SPARK and name in CLOSED_LATER else "few"

        runs = [
            {
                "name": name,
                "input": str(self.work / source(name) / "in"),
                "output": str(self.work / kind / system / name),
                "memory": (memory or {}).get(name, MEMORY),
                "rows": sum(self.lengths[part_of(name)][each] for each in _read(name)),
                "skip": SKIP,
                "together": together,
                "compared": (COMPARED, SLOWLY) if compared else None,
            }
            for name in names
        ]
        command = [sys.executable, "-m", f"bench.{MODULES[system]}"]
        plan = {"cores": CORES, "runs": runs}

        def made() -> Runs:
            limit = PATIENCE
            found = systems.watched(command, plan, system, self.progress, memory=True, limit=limit)
            return {each["name"]: each for each in found}

        return systems.peer(made, self.progress) if runs else {}


def part_of(name: str) -> str:
    """Return the folder of the events that a statement is measured with."""
    return "bids" if "bid" in _read(name) else "no bids"


# -- Flink ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Flink:
    """Statements by Flink."""

    #: rows of each stream, by folder
    lengths: Mapping[str, Mapping[str, int]]
    work: Path
    progress: ProgressLog

    def searched(self, names: tuple[str, ...]) -> Runs:
        """Search a configuration on some statements, and run the others with the best one.

        Compared are the statements that have a rate with all of them: one may be stopped with a
        slow configuration, and be too short to measure with a fast one.
        """
        on = _among(SEARCHED, names)
        found: dict[str, Runs] = {
            label: self.rates(on, options) for label, options in CONFIGURATIONS.items()
        }
        common = [name for name in on if all(name in runs for runs in found.values())]

        def rate(label: str) -> float:
            runs = found[label]
            return mean([runs[name]["eps"] for name in common or runs]) or 0.0

        best = max(found, key=rate)
        others = tuple(name for name in names if name not in on)
        measured = self.rates(others, CONFIGURATIONS[best]) | found[best]
        searched = {
            label: {name: each["eps"] for name, each in runs.items()}
            for label, runs in found.items()
        }
        return {**measured, "configuration": {"best": best, "searched": searched}}

    def rates(self, names: tuple[str, ...], options: Mapping[str, Any]) -> Runs:
        """Run statements; rates are of all streams that they read."""
        made = {}
        for each in self.run(names, options):
            if each.get("eps"):
                eps = each["eps"] * self._share(each["name"])
                made[each["name"]] = {**each, "eps": eps}
            else:
                said = each.get("error", "too short to measure")
                self.progress.note(f"flink {each['name']}: {said}")
        return made

    def run(self, names: tuple[str, ...], options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return what Flink reports of some statements."""
        from bench.nexmark.running import statement  # noqa: PLC0415 - imports Spark

        python = python_of(FLINK_PEER, workspace(), self.progress)
        script = Path(__file__).parents[1] / "peers" / "flink_nexmark.py"
        runs = [
            {
                "name": name, "text": statement(name),
                "input": str(self.work / self._part(name) / "csv"),
                "source": self._largest(name), "rows": self._rows(name)[self._largest(name)],
                "cores": CORES, "managed_memory": MEMORY.lower(), "checkpoint_every": "10 s",
                **options, **({"key": KEYS[name]} if name in KEYS else {}),
            }
            for name in names
        ]  # fmt: skip
        # -E: ignore this environment's PYTHONPATH
        command = [str(python), "-E", str(script)]
        plan = {"runs": runs}
        if not runs:
            return []
        return systems.watched(command, plan, FLINK, self.progress, memory=True, limit=PATIENCE)

    def _part(self, name: str) -> str:
        """Return the folder that a statement reads."""
        return next(iter(self.lengths)) if len(self.lengths) == 1 else part_of(name)

    def _rows(self, name: str) -> Mapping[str, int]:
        return self.lengths[self._part(name)]

    def _largest(self, name: str) -> str:
        return max(_read(name), key=lambda each: self._rows(name)[each])

    def _share(self, name: str) -> float:
        rows = self._rows(name)
        return sum(rows[each] for each in _read(name)) / rows[self._largest(name)]


def _read(name: str) -> list[str]:
    from bench.nexmark.running import statement  # noqa: PLC0415 - imports Spark

    return read_by(statement(name))


def _flinks_rows(
    tables: Mapping[str, Any], names: tuple[str, ...], work: Path, progress: ProgressLog
) -> dict[str, int | None]:
    """Return how many rows of each of Flink's statements are not those of DuckDB."""
    from bench.nexmark.answers import answer, bag, flinks, other_rows  # noqa: PLC0415 - DuckDB

    lengths = {name: len(table) for name, table in tables.items()}
    options = {"backend": "hashmap", "mini_batch": False, "kind": "rows"}
    found: dict[str, int | None] = {}
    for each in _Flink({"fewer": lengths}, work, progress).run(names, options):
        name = each["name"]
        if "rows" not in each:
            progress.note(f"flink {name}: {each['error']}")
            found[name] = None
            continue
        rows: Counter[tuple[Any, ...]] = Counter()
        for row, number in each["rows"]:
            rows.update(dict.fromkeys(bag([tuple(row)]), number))
        found[name] = other_rows(name, rows, flinks(name, answer(name, tables)))
    return found


def read_by(text: str) -> list[str]:
    """Return the streams that a statement reads."""
    named = re.findall(r"\b(?:FROM|JOIN|TABLE)\s+(person|auction|bid)\b", text, re.IGNORECASE)
    listed = re.findall(r"\bFROM[^()]*?,\s*(person|auction|bid)\b", text, re.IGNORECASE)
    return sorted({each.lower() for each in (*named, *listed)})


def summarise(runs: Mapping[str, Runs], names: Sequence[str]) -> dict[str, Any]:
    """Put the rates (events per second) of statements side by side."""
    rates = {
        system: {name: e["eps"] for name, e in made.items() if name in STATEMENTS and e.get("eps")}
        for system, made in runs.items()
    }

    def sizes(of: str) -> dict[str, dict[str, int | None]]:
        return {
            system: {name: each.get(of) for name, each in made.items() if name in STATEMENTS}
            for system, made in runs.items()
        }

    mine, spark, flink = rates[ICESTREAM], rates[SPARK], rates.get(FLINK, {})
    of_spark = {name: mine[name] / spark[name] for name in spark if name in mine}
    of_flink = {name: mine[name] / flink[name] for name in flink if name in mine}
    stateful = {name: ratio for name, ratio in of_flink.items() if name not in STATELESS}
    return {
        "icestream_eps": {name: mine.get(name) for name in names},
        "state_bytes": sizes("state_bytes"),
        "peak_bytes": sizes("process_bytes"),
        "forms": {name: each["form"] for name, each in runs[ICESTREAM].items()},
        "spark_eps": spark,
        "flink_eps": flink,
        "flink_configuration": runs.get(FLINK, {}).get("configuration"),
        "of_spark": of_spark,
        "of_flink": of_flink,
        "spark_with_state": mean([r for n, r in of_spark.items() if n not in STATELESS]),
        "alone": mean([r for n, r in of_spark.items() if n in STATELESS]),
        "flink_with_state": mean(list(stateful.values())),
        "least_of_flink": min(stateful.values(), default=None),
    }


def in_larger_batches(larger: Runs, flink: Runs) -> dict[str, Any]:
    """Compare the rates of statements with state where Icestream commits less often."""
    rates = {name: each["eps"] for name, each in larger.items() if each.get("eps")}
    ratios = {name: eps / flink[name]["eps"] for name, eps in rates.items() if name in flink}
    return {
        "larger_batches_eps": rates,
        "larger_batches_of_flink": ratios,
        "larger_batches_of_flink_mean": mean(list(ratios.values())),
    }


def mean(ratios: list[float]) -> float | None:
    """Return the geometric mean."""
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else None


def judge(figures: Figures) -> tuple[Bar, ...]:
    """Compare the figures with the claims."""
    asked, wrong = figures["icestream_eps"], figures["other_rows"][ICESTREAM]
    ran = sum(eps is not None for eps in asked.values())
    differ = sum(each > 0 for each in wrong.values()) if len(wrong) == len(asked) else None
    return (
        Bar.at_least("statements that run", len(asked), ran),
        Bar.at_most("statements with other rows than DuckDB", 0, differ),
        Bar.at_least("of Flink, with state", LEAST_OF_FLINK, figures["flink_with_state"]),
        Bar.at_least("of Flink, the least", 1, figures["least_of_flink"]),
        Bar.at_least("of Spark, with state", LEAST_OF_SPARK, figures["spark_with_state"]),
        Bar.at_least("of Spark, handed to it", LEAST_ALONE, figures["alone"]),
    )


def plot(figures: Figures, target: Path) -> None:
    """Draw the rates as bars on a logarithmic scale."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only drawing needs it

    names = list(figures["icestream_eps"])
    drawing = Figure(figsize=(8, 5), layout="constrained")
    axes = drawing.subplots()
    for shift, (label, rates) in enumerate(
        (
            ("Icestream", figures["icestream_eps"]),
            ("Flink", figures["flink_eps"]),
            ("Spark", figures["spark_eps"]),
        )
    ):
        places = [place + 0.27 * shift for place in range(len(names))]
        axes.barh(places, [rates.get(name) or 0.0 for name in names], 0.25, label=label)
    axes.set_yticks([place + 0.27 for place in range(len(names))], names)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("events per second")
    axes.set_title("Nexmark, 2 cores")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    target.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(target, dpi=150)


def narrowed(only: Sequence[str]) -> Bench:
    """Return the bench with some of the statements."""
    unknown = [name for name in only if name not in STATEMENTS]
    if unknown:
        msg = f"unknown statements {', '.join(unknown)}: choose some of {', '.join(STATEMENTS)}"
        raise DefinitionError(msg)
    return replace(BENCH, measure=partial(measure, only=only))


BENCH = Bench(
    "nexmark",
    "all Nexmark statements run, those with state three times as fast as Flink, ten times as Spark",
    measure,
    plot,
    narrowed,
)
