"""All apps for half an hour under faults: nothing is lost or duplicated, memory stays flat.

Idea: apps run in turn, in a small run each of them once, with fewer events. Each time an app gets a
new stream; it runs undisturbed, and then again while it is killed at random moments, its disk is
slow and full at times, its clock jumps, and batches grow and shrink. The outputs that readers of
the two runs see are compared: all rows if rows are emitted once; the valid rows at some times if
rows can be retracted; the newest row of each key if only that counts. Memory is sampled; pages that
processes share are counted once. An undisturbed run, once warm, must not need more in its last
third than in the one before. The memory of Java, which its heap bounds, is reported separately. A
round that fails is reported with the end of its log, and others go on.

Limits: the disk refuses only new files; the machine itself stays up.
"""

from __future__ import annotations

import base64
import html
import io
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from icestream.core.errors import IcestreamError
from icestream.core.times import INFINITY
from icestream.core.units import format_bytes
from icestream.demo.results import micros_of
from icestream.state.files import LocalFiles
from icestream.state.versions.commits import VersionStore
from tests.faults.killing import kill_until_done

if TYPE_CHECKING:
    from bench.safety.soak_apps import App

#: exit code of a run that the disk refused; it is restarted
REFUSED = 75
#: minutes in which rounds begin; every app has at least one
MINUTES = {Size.SMALL: 0.0, Size.FULL: 30.0}
#: kills of a round, and its share of the events
KILLS = {Size.SMALL: 1, Size.FULL: 4}
SHARE = {Size.SMALL: 0.3, Size.FULL: 1.0}
#: seconds between two samples of memory
_EVERY = 0.5
#: allowed growth of memory in the last third of an undisturbed run, and samples needed
_FLAT = 1.1
_LEAST_SAMPLES = 4
_PATIENCE = 900.0
#: times at which valid rows are compared
_INSTANTS = 12

#: seconds since the start, bytes of Python, bytes of Java, versions that were committed
Sample = tuple[float, int, int, int]


def seen_file(own: Path, name: str) -> Path:
    """Return the file in which a finished run lists what readers of a result see."""
    return own / f"{name}-seen.parquet"


def _apps() -> Mapping[str, App]:
    from bench.safety.soak_apps import APPS  # noqa: PLC0415 - needs Spark

    return APPS


@dataclass
class Round:
    """One round of an app."""

    app: str
    seed: int
    seconds: float = 0.0
    rows: int = 0
    differences: int = 0
    kills: int = 0
    refused: int = 0
    #: why it failed; empty if it did not
    failure: str = ""
    #: memory of the runs under faults, and of the undisturbed one
    memory: list[Sample] = field(default_factory=list)
    calm: list[Sample] = field(default_factory=list)

    @property
    def growth(self) -> float | None:
        """Return the growth of Python's memory in the warm undisturbed run."""
        return grown(self.calm)


def grown(samples: Sequence[Sample]) -> float | None:
    """Return the peak bytes in the last third of the versions relative to the third before it.

    None if there are too few of either.
    """
    last = max((version for *_, version in samples), default=0)
    middle = [python for _, python, _, version in samples if last <= 3 * version < 2 * last]
    end = [python for _, python, _, version in samples if 2 * last <= 3 * version < 3 * last]
    return max(end) / max(middle) if min(len(middle), len(end)) >= _LEAST_SAMPLES else None


class _Memory:
    """Samples the memory of a process and its children, counting shared pages once."""

    def __init__(self, version: Callable[[], int]) -> None:
        self._version = version
        self.samples: list[Sample] = []
        self.pid: int | None = None
        self._ended = threading.Event()
        self._began = time.monotonic()

    @contextmanager
    def watching(self) -> Iterator[_Memory]:
        """Sample in the background."""
        thread = threading.Thread(target=self._watch, name="soak-memory", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY):
            if self.pid is None:
                continue
            with suppress(psutil.Error):
                process = psutil.Process(self.pid)
                held = {True: 0, False: 0}
                for each in (process, *process.children(recursive=True)):
                    held[each.name() == "java"] += each.memory_full_info().pss
                seconds = time.monotonic() - self._began
                self.samples.append((seconds, held[False], held[True], self._version()))

    def follow(self, pid: int) -> None:
        """Sample another process from now on."""
        self.pid = pid


def differences(app: str, calm: Sequence[Path], tormented: Sequence[Path]) -> tuple[int, int]:
    """Return the number of rows of the undisturbed run, and how many differ."""
    rows = wrong = 0
    for one, other in zip(calm, tormented, strict=True):
        tables = [pq.read_table(path) for path in (one, other)]
        instants = instants_of(tables[0])
        left, right = (told(app, table, instants) for table in tables)
        rows += sum(left.values())
        wrong += (left - right).total() + (right - left).total()
    return rows, wrong


def told(app: str, table: pa.Table, instants: Sequence[int]) -> Counter[str]:
    """Return the results of an app, independent of its batches."""
    by = _apps()[app].newest_by
    if by is not None:
        table = table.sort_by([(name, "ascending") for name in (*by, "ts")])
        newest = [("price", "last"), ("ts", "last")]
        last = table.group_by(list(by), use_threads=False).aggregate(newest)
        return Counter(map(_text, last.to_pylist()))
    if not instants:
        return Counter(map(_text, table.to_pylist()))
    starts, ends = _lifetimes(table)
    change = table.column("change").to_numpy()
    rows = table.drop_columns(["lifetime", "change"])
    found = Counter[str]()
    for instant in instants:
        alive = np.flatnonzero((starts <= instant) & (instant < ends))
        for row, sign in zip(rows.take(alive).to_pylist(), change[alive].tolist(), strict=True):
            found[f"{instant} {_text(row)}"] += sign
    return Counter({text: count for text, count in found.items() if count})


def instants_of(table: pa.Table) -> list[int]:
    """Return times at which rows that may be retracted are compared; none for other rows."""
    if "change" not in table.column_names:
        return []
    starts, _ = _lifetimes(table)
    chosen = np.quantile(starts, np.linspace(0, 1, _INSTANTS), method="nearest")
    return [int(instant) for instant in np.unique(chosen)]


def _lifetimes(table: pa.Table) -> tuple[Any, Any]:
    lifetime = table.column("lifetime").combine_chunks()
    starts = micros_of(lifetime.field("start"))
    ends = pc.fill_null(micros_of(lifetime.field("end")), INFINITY)
    return np.asarray(starts), np.asarray(ends)


def _text(row: dict[str, Any]) -> str:
    plain = {
        name: float(f"{value:.9g}") if isinstance(value, float) else value
        for name, value in row.items()
    }
    return json.dumps(plain, default=str, sort_keys=True)


def one_round(app: str, seed: int, folder: Path, size: Size = Size.FULL) -> Round:
    """Run an app undisturbed and under faults over the same stream, and compare."""
    done, began = Round(app, seed), time.monotonic()
    events = folder / "events"
    events.mkdir(parents=True)
    _apps()[app].write(events, seed, SHARE[size])
    calm, tormented = folder / "calm", folder / "tormented"
    with _Memory(partial(_versions, calm)).watching() as quiet:
        kill_until_done(
            _command(app, events, calm),
            steps=int,
            kills=0,
            seed=seed,
            patience=_PATIENCE,
            on_start=quiet.follow,
        )
    with _Memory(partial(_versions, tormented)).watching() as memory:
        killings = kill_until_done(
            _command(app, events, tormented, tormented=True),
            steps=partial(_versions, tormented),
            kills=KILLS[size],
            seed=seed,
            patience=_PATIENCE,
            again=(REFUSED,),
            on_start=memory.follow,
        )
    done.memory, done.calm = memory.samples, quiet.samples
    done.kills, done.refused = killings.kills, killings.refused
    names = _apps()[app].results
    seen = ([seen_file(own, name) for name in names] for own in (calm, tormented))
    done.rows, done.differences = differences(app, *seen)
    done.seconds = time.monotonic() - began
    return done


def _versions(own: Path) -> int:
    """Return the last version that a run has committed."""
    return max(VersionStore(LocalFiles(), f"{own}/checkpoint/icestream").versions(), default=0)


def _command(app: str, events: Path, own: Path, *, tormented: bool = False) -> list[str]:
    own.mkdir(exist_ok=True)
    asked = {"app": app, "events": str(events), "own": str(own), "tormented": tormented}
    return [sys.executable, "-m", "bench.safety.soak_program", json.dumps(asked)]


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run apps under faults in turn until the time is over."""
    folder = Path(scratch(workspace(), "soak"))
    ends = time.monotonic() + 60 * MINUTES[size]
    rounds: list[Round] = []
    names = list(_apps())
    progress.plan(len(names))
    while time.monotonic() < ends or len(rounds) < len(names):
        number = len(rounds)
        app = names[number % len(names)]
        progress.step(f"{app}, round {number + 1}")
        try:
            last = one_round(app, number + 1, folder / str(number), size)
        except IcestreamError as error:
            last = Round(app, number + 1, failure=str(error))
        rounds.append(last)
        progress.note(
            f"{app}: {last.rows} rows, {last.differences} differ, {last.kills} kills, "
            f"{last.refused} refusals of the disk, memory {_shown(last.growth)}"
            f"{last.failure and ', failed: '}{last.failure}"
        )
    figures = {"rounds": [{**asdict(each), "growth": each.growth} for each in rounds]}
    page = folder / "soak.html"
    page.write_text(report(figures), encoding="utf-8")
    progress.note(f"the report is {page}")
    return Measurement(
        figures,
        (
            Bar.at_least("apps", len(names), len({each.app for each in rounds})),
            Bar.at_most("rounds that failed", 0, sum(bool(each.failure) for each in rounds)),
            Bar.at_most("rows that differ", 0, sum(each.differences for each in rounds)),
            Bar.at_least("rows compared", 1000, sum(each.rows for each in rounds)),
            Bar.at_least("kills", KILLS[size], sum(each.kills for each in rounds)),
            Bar.at_most("memory, last third over the one before", _FLAT, _most_grown(rounds)),
        ),
    )


def _most_grown(rounds: Sequence[Round]) -> float | None:
    """Return the largest growth among runs that took long enough."""
    return max((each.growth for each in rounds if each.growth is not None), default=None)


def _shown(growth: float | None) -> str:
    return "-" if growth is None else f"{growth:.2f}"


def plot(figures: Figures, target: Path | io.BytesIO) -> None:
    """Draw the memory of every round over time."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to import

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    rounds = figures["rounds"]
    across = 3
    down = -(-len(rounds) // across)
    figure, axes = plt.subplots(down, across, figsize=(12, 2.6 * down), squeeze=False)
    for place, axis in enumerate(axes.flat):
        if place >= len(rounds):
            axis.axis("off")
            continue
        each = rounds[place]
        for name, colour in (("calm", "tab:blue"), ("memory", "tab:red")):
            seconds = [at for at, *_ in each[name]]
            python = [value / 2**20 for _, value, *_ in each[name]]
            whole = [(value + java) / 2**20 for _, value, java, _ in each[name]]
            kind = "undisturbed" if name == "calm" else "tormented"
            axis.plot(seconds, whole, linewidth=0.6, color=colour, alpha=0.4)
            axis.plot(seconds, python, linewidth=1.0, color=colour, label=kind)
        axis.set_title(
            f"{each['app']}: {each['kills']} kills, {each['refused']} refusals", fontsize=9
        )
        axis.set_ylim(bottom=0)
        axis.set_ylabel("MB")
        axis.set_xlabel("s")
    axes.flat[0].legend(fontsize=8, title="Python; faint: with Java", title_fontsize=8)
    figure.tight_layout()
    figure.savefig(target, dpi=110)
    plt.close(figure)


def report(figures: Figures) -> str:
    """Return an HTML report."""
    picture = io.BytesIO()
    plot(figures, picture)
    rows = "".join(
        f"<tr><td>{html.escape(each['app'])}<td>{each['seed']}<td>{each['seconds']:.0f}"
        f"<td>{each['rows']:,}<td>{each['differences']}<td>{each['kills']}<td>{each['refused']}"
        f"<td>{format_bytes(max((python for _, python, *_ in each['memory']), default=0))}"
        f"<td>{_shown(each['growth'])}"
        for each in figures["rounds"]
    )
    failures = "".join(
        f"<h2>{html.escape(each['app'])}, seed {each['seed']}</h2>"
        f"<pre>{html.escape(each['failure'])}</pre>"
        for each in figures["rounds"]
        if each["failure"]
    )
    heads = (
        "app",
        "seed",
        "seconds",
        "rows",
        "differences",
        "kills",
        "disk refused",
        "most memory of Python",
    )
    style = "body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}"
    return (
        f"<!doctype html><meta charset=utf-8><title>Icestream soak</title><style>{style}</style>"
        "<h1>Apps under kills, full and slow disks, clock jumps and bursts</h1>"
        f"<table><tr>{''.join(f'<th>{head}' for head in (*heads, 'growth'))}{rows}</table>"
        f"{failures}"
        f'<img alt="memory over time" src="data:image/png;base64,'
        f'{base64.b64encode(picture.getvalue()).decode()}">'
    )


BENCH = Bench(
    "soak",
    "apps that are killed, refused by the disk and misled by the clock lose no row",
    measure,
    plot,
)
