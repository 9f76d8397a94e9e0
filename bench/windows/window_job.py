"""The job of the migration benches: windows by key on several nodes, fed with rows that fill them.

Idea: a batch is half a pane and has every key once or a number of random rows, so the size of the
state is known: as many keys as requested in each key group, in every pane.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.research.simulated_cluster.job import RunningJob, WindowJob
from bench.research.simulated_cluster.moving_windows import Mapped
from bench.research.split_combine import ComponentShape
from icestream.operators.protocol import Emitted
from icestream.plan.windows.grid import Windows
from icestream.state.files import Files, LocalFiles
from tests.fixtures.plans import QuickFiles

MINUTE = 60_000_000
#: windows that slide: every pane is state until it leaves
SLIDING = (Windows(10 * MINUTE, MINUTE),)


class Feeder:
    """Feeds a job batch by batch."""

    def __init__(self, job: RunningJob, keys: int, *, batches_per_minute: int = 2) -> None:
        """Start at time 0, with `keys` keys in all."""
        self.job = job
        self.keys = keys
        self.rows = 0
        #: seconds of processor time that the job took
        self.seconds = 0.0
        self._step = MINUTE // batches_per_minute
        self._now = 0
        self._dice = np.random.default_rng(3)

    def every_key(self) -> list[Emitted]:
        """Feed a batch that has every key once."""
        return self.feed(self._dice.permutation(self.keys))

    def random_keys(self, rows: int) -> list[Emitted]:
        """Feed a batch of random keys."""
        return self.feed(self._dice.integers(0, self.keys, rows))

    def feed(self, keys: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[Emitted]:
        """Feed a batch of some keys."""
        count = len(keys)
        times = np.sort(self._dice.integers(self._now, self._now + self._step, count))
        values = self._dice.integers(0, 1_000, count)
        batch = pa.RecordBatch.from_pydict({"time": times, "k0": keys, "x0": values})
        self._now += self._step
        self.rows += count
        began = time.process_time()
        emitted = self.job.feed(batch, self._now)
        self.seconds += time.process_time() - began
        return emitted


def opened(
    folder: Path,
    shape: ComponentShape,
    groups: int,
    *,
    windows: tuple[Windows, ...] = SLIDING,
    nodes: int = 1,
    homes: Sequence[int] | None = None,
    synced: bool = True,
    mapped: Mapped | None = None,
) -> RunningJob:
    """Open the job with its key groups spread over nodes; consolidation is on the same ones."""
    places = [group % nodes for group in range(groups)]
    files: Files = LocalFiles() if synced else QuickFiles()
    return RunningJob(
        WindowJob(windows, MINUTE, groups),
        shape,
        str(folder),
        files,
        places=places,
        homes=places if homes is None else homes,
        mapped=mapped,
    )
