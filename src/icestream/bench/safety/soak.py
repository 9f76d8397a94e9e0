"""All apps for half an hour, tormented: nothing is lost, nothing comes twice, memory stays flat.

Idea: apps take turns, in a small run each of them once, with fewer events. Each time an app gets a
new stream; it is run undisturbed, and then again while it is killed at random moments, its disk is
slow and full at times, its clock jumps, and batches grow and shrink. What readers of the two see is
compared: all rows where rows are told once; what is so at some instants where rows are taken back;
the newest row of each key where only that counts.
Memory of all processes is sampled; a run may not need more at its end than in its first half.

Limits: the disk refuses new files, not every write; the machine itself stays up.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icestream.apps.results import micros_of
from icestream.bench.harness import scratch, workspace
from icestream.bench.registry import Bar, Bench, Figures, Measurement, Progress, Size
from icestream.core.times import INFINITY
from icestream.core.units import format_bytes
from icestream.testing.faults.killing import kill_until_done

if TYPE_CHECKING:
    from icestream.bench.safety.soak_apps import App

#: exit code of a run that the disk refused; who operates it starts it again
REFUSED = 75
#: minutes in which rounds begin; every app has one at least
MINUTES = {Size.SMALL: 0.0, Size.FULL: 30.0}
#: kills of a round, and the share of the events that it has
KILLS = {Size.SMALL: 1, Size.FULL: 4}
SHARE = {Size.SMALL: 0.3, Size.FULL: 1.0}
#: seconds between two samples of memory
_EVERY = 0.5
#: what memory may grow by from the first half of a run to its second; a short one only warms up
_FLAT = {Size.SMALL: 2.0, Size.FULL: 1.25}
_PATIENCE = 900.0
#: instants at which what is so is compared
_INSTANTS = 12


def seen_file(own: Path, name: str) -> Path:
    """Return where a finished run writes down what readers of a result see."""
    return own / f"{name}-seen.parquet"


def _apps() -> Mapping[str, App]:
    from icestream.bench.safety.soak_apps import APPS  # noqa: PLC0415 - needs Spark

    return APPS


@dataclass
class Round:
    """One app, once."""

    app: str
    seed: int
    seconds: float = 0.0
    rows: int = 0
    differences: int = 0
    kills: int = 0
    refused: int = 0
    #: seconds since its start, and bytes of all processes, of the tormented runs
    memory: list[tuple[float, int]] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Return the most bytes of the second half over those of the first."""
        used = [bytes_ for _, bytes_ in self.memory if bytes_]
        half = len(used) // 2
        return max(used[half:]) / max(used[:half]) if half else 1.0


class _Memory:
    """Samples the memory of a process and its children."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []
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
                family = [process, *process.children(recursive=True)]
                held = sum(each.memory_info().rss for each in family)
                self.samples.append((time.monotonic() - self._began, held))

    def follow(self, pid: int) -> None:
        """Look at another process from now on."""
        self.pid = pid


def differences(app: str, calm: Sequence[Path], tormented: Sequence[Path]) -> tuple[int, int]:
    """Return the rows of the undisturbed run, and how many differ."""
    rows = wrong = 0
    for one, other in zip(calm, tormented, strict=True):
        tables = [pq.read_table(path) for path in (one, other)]
        instants = instants_of(tables[0])
        left, right = (told(app, table, instants) for table in tables)
        rows += sum(left.values())
        wrong += (left - right).total() + (right - left).total()
    return rows, wrong


def told(app: str, table: pa.Table, instants: Sequence[int]) -> Counter[str]:
    """Return what the results of an app say, whatever the batches were."""
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
    """Return instants at which rows that may be taken back are looked at; none for other rows."""
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
    """Run an app undisturbed and tormented over the same stream, and compare."""
    done, began = Round(app, seed), time.monotonic()
    events = folder / "events"
    events.mkdir(parents=True)
    _apps()[app].write(events, seed, SHARE[size])
    calm, tormented = folder / "calm", folder / "tormented"
    kill_until_done(_command(app, events, calm), steps=int, kills=0, seed=seed, patience=_PATIENCE)
    with _Memory().watching() as memory:
        killings = kill_until_done(
            _command(app, events, tormented, tormented=True),
            steps=lambda: len(list(tormented.glob("checkpoint/icestream/commits/*.json"))),
            kills=KILLS[size],
            seed=seed,
            patience=_PATIENCE,
            again=(REFUSED,),
            on_start=memory.follow,
        )
    done.memory = memory.samples
    done.kills, done.refused = killings.kills, killings.refused
    names = _apps()[app].results
    seen = ([seen_file(own, name) for name in names] for own in (calm, tormented))
    done.rows, done.differences = differences(app, *seen)
    done.seconds = time.monotonic() - began
    return done


def _command(app: str, events: Path, own: Path, *, tormented: bool = False) -> list[str]:
    own.mkdir(exist_ok=True)
    asked = {"app": app, "events": str(events), "own": str(own), "tormented": tormented}
    return [sys.executable, "-m", "icestream.bench.safety.soak_program", json.dumps(asked)]


def measure(size: Size, progress: Progress) -> Measurement:
    """Torment apps in turn until time is over."""
    folder = Path(scratch(workspace(), "soak"))
    ends = time.monotonic() + 60 * MINUTES[size]
    rounds: list[Round] = []
    names = list(_apps())
    progress.plan(len(names))
    while time.monotonic() < ends or len(rounds) < len(names):
        number = len(rounds)
        app = names[number % len(names)]
        progress.step(f"{app}, round {number + 1}")
        rounds.append(one_round(app, number + 1, folder / str(number), size))
        last = rounds[-1]
        progress.note(
            f"{app}: {last.rows} rows, {last.differences} differ, {last.kills} kills, "
            f"{last.refused} refusals of the disk, memory {last.growth:.2f}"
        )
    figures = {"rounds": [{**asdict(each), "growth": each.growth} for each in rounds]}
    page = folder / "soak.html"
    page.write_text(report(figures), encoding="utf-8")
    progress.note(f"the report is {page}")
    return Measurement(
        figures,
        (
            Bar.at_least("apps", len(names), len({each.app for each in rounds})),
            Bar.at_most("rows that differ", 0, sum(each.differences for each in rounds)),
            Bar.at_least("rows compared", 1000, sum(each.rows for each in rounds)),
            Bar.at_least("kills", KILLS[size], sum(each.kills for each in rounds)),
            Bar.at_most(
                "memory, second half over first",
                _FLAT[size],
                max(each.growth for each in rounds),
            ),
        ),
    )


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
        seconds, used = zip(*each["memory"], strict=True) if each["memory"] else ((), ())
        axis.plot(seconds, [value / 2**20 for value in used], linewidth=0.8)
        axis.set_title(
            f"{each['app']}: {each['kills']} kills, {each['refused']} refusals", fontsize=9
        )
        axis.set_ylim(bottom=0)
        axis.set_ylabel("MB")
    figure.tight_layout()
    figure.savefig(target, dpi=110)
    plt.close(figure)


def report(figures: Figures) -> str:
    """Return a page that tells what happened."""
    picture = io.BytesIO()
    plot(figures, picture)
    rows = "".join(
        f"<tr><td>{html.escape(each['app'])}<td>{each['seed']}<td>{each['seconds']:.0f}"
        f"<td>{each['rows']:,}<td>{each['differences']}<td>{each['kills']}<td>{each['refused']}"
        f"<td>{format_bytes(max((used for _, used in each['memory']), default=0))}"
        f"<td>{each['growth']:.2f}"
        for each in figures["rounds"]
    )
    heads = (
        "app",
        "seed",
        "seconds",
        "rows",
        "differences",
        "kills",
        "disk refused",
        "most memory",
    )
    style = "body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}"
    return (
        f"<!doctype html><meta charset=utf-8><title>Icestream soak</title><style>{style}</style>"
        "<h1>Apps under kills, full and slow disks, clock jumps and bursts</h1>"
        f"<table><tr>{''.join(f'<th>{head}' for head in (*heads, 'growth'))}{rows}</table>"
        f'<img alt="memory over time" src="data:image/png;base64,'
        f'{base64.b64encode(picture.getvalue()).decode()}">'
    )


BENCH = Bench(
    "soak",
    "apps that are killed, refused by the disk and misled by the clock lose no row",
    measure,
    plot,
)
