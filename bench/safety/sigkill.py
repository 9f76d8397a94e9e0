"""A query on Spark, killed with SIGKILL at random moments, delivers every row exactly once.

Idea: the same program runs twice over the same files, once undisturbed and once killed and
restarted, with all its processes. The rows that readers of the two outputs see are compared as
multisets.

Invariant: missing, extra and duplicate rows are all differences
(`test_a_row_that_is_there_twice_is_a_difference`).

Limits: the machine itself stays up; power failures are covered by `bench.safety.crash`. A kill
between the log of Spark's file source and its log of offsets makes Spark merge two batches into
one; so events here are either inside the slack or far too late, wherever a batch ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.registry import Bar
from bench.safety.killed_query import in_store
from icestream.state.files import Files, LocalFiles
from icestream.state.stores.store_files import StoreFiles
from icestream.state.versions.commits import VersionStore
from tests.faults.killing import Killings, kill_until_done

KILLS = 20
EVENTS = 200
KEYS = 30
#: microseconds of event time in one file
FILE_SPAN = 4_000_000
#: seconds that a run may take
PATIENCE = 1_800.0


@dataclass(frozen=True)
class OutputComparison:
    """The comparison of the two outputs."""

    kills: int
    #: rows of results and late events, undisturbed
    rows: int
    differences: int
    #: seconds that each killed run lived
    lives: tuple[float, ...]

    @property
    def bars(self) -> tuple[Bar, ...]:
        """Return its bars."""
        return (
            Bar.at_least("sigkills", KILLS, self.kills),
            Bar.at_most("sigkill_differences", 0, self.differences),
        )


def compare(
    folder: Path,
    *,
    kills: int = KILLS,
    seed: int = 1,
    files: int = 100,
    sink: str = "parquet",
    store: Mapping[str, str] | None = None,
    on_kill: Callable[[Killings], None] = lambda _killings: None,
) -> OutputComparison:
    """Run the query with and without kills in `folder`, and compare.

    With the options of a `store`, state and table are in its bucket.
    """
    write_input(folder / "in", files, seed)
    undisturbed = _command(folder, "undisturbed", sink, store)
    kill_until_done(undisturbed, steps=lambda: 0, kills=0, seed=seed, patience=PATIENCE)
    killings = kill_until_done(
        _command(folder, "killed", sink, store),
        steps=lambda: _versions(folder / "killed", store),
        kills=kills,
        seed=seed,
        patience=PATIENCE,
        on_kill=on_kill,
    )
    expected, found = (_seen(folder / name) for name in ("undisturbed", "killed"))
    return OutputComparison(
        killings.kills, len(expected), differences(expected, found), tuple(killings.lives)
    )


def differences(expected: Sequence[str], found: Sequence[str]) -> int:
    """Count rows that one list has more often than the other."""
    one, other = Counter(expected), Counter(found)
    return (one - other).total() + (other - one).total()


def write_input(folder: Path, files: int, seed: int) -> None:
    """Write one file of events per batch; some come late, and after a while a few too late."""
    folder.mkdir(parents=True)
    for number in range(files):
        dice = np.random.default_rng([seed, number])
        times = number * FILE_SPAN + dice.integers(-2_000_000, FILE_SPAN, EVENTS)
        if number >= files // 10:
            times[:4] -= 200_000_000
        events = {
            "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "key": pa.array([f"key {key}" for key in dice.integers(0, KEYS, EVENTS)]),
            "value": dice.normal(size=EVENTS),
        }
        path = folder / f"{number:05d}.parquet"
        pq.write_table(pa.table(events), path)
        # Spark reads files in the order of their times
        os.utime(path, (1e9 + number, 1e9 + number))


def _versions(own: Path, store: Mapping[str, str] | None) -> int:
    """Return the number of the last version that a run has committed."""
    files: Files = LocalFiles() if store is None else StoreFiles(store)
    root = f"{own}/checkpoint" if store is None else in_store(own, "state")
    return max(VersionStore(files, f"{root}/icestream").versions(), default=0)


def _command(
    folder: Path, name: str, sink: str, store: Mapping[str, str] | None = None
) -> list[str]:
    plan = json.dumps({"folder": str(folder), "name": name, "sink": sink, "store": store})
    return [sys.executable, "-m", "bench.safety.killed_query", plan]


def _seen(own: Path) -> list[str]:
    return (own / "seen.txt").read_text(encoding="utf-8").splitlines()
