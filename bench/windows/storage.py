"""The call-centre windows with their state in a slow object store, compared with the local disk.

Idea: the same batches, not paced, go through two queries of one process, in turn, so that both meet
the same machine: with the checkpoint on the local disk, and in a store that takes 20 ms for each
request and a second for each 100 MB. The delay is in the storage layer; the objects are files, so
that no server takes part in the cores.

Limits: one task runs all shards; requests that run at the same time share no bandwidth.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.harness import scratch, workspace
from bench.registry import Bar, Bench, Figures, Measurement, ProgressLog, Size
from bench.windows.call_centre_over_time import Case, batch_of
from icestream.demo.call_centre.generator import AgentInteractions
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings
from icestream.state.files import Files, LocalFiles
from icestream.state.stores.bucket import Bucket, Found
from icestream.state.stores.store_files import StoreFiles

LATENCY = 0.020
BYTES_PER_SECOND = 100e6
SHARDS = 16
#: events of a batch, measured batches, and batches that warm up
CASES = {Size.SMALL: (1_000_000, 12, 3), Size.FULL: (1_000_000, 60, 10)}


class SlowBucket(Bucket):
    """A bucket far away."""

    def get(self, key: str, first: int = 0, last: int | None = None) -> Found:
        """Wait for the request and the bytes."""
        found = super().get(key, first, last)
        time.sleep(len(found.data) / BYTES_PER_SECOND)
        return found

    def put(self, key: str, chunks: Sequence[Callable[[], bytes]]) -> None:
        """Wait for the request and the bytes."""
        time.sleep(sum(len(chunk()) for chunk in chunks) / BYTES_PER_SECOND)
        super().put(key, chunks)

    def repeated(self, kind: str, key: str, act: Callable[[], Any], *failures: Any) -> Any:
        """Wait for the request."""
        time.sleep(LATENCY)
        return super().repeated(kind, key, act, *failures)


@lru_cache
def far_away(address: str, options: tuple[tuple[str, str], ...]) -> Bucket:
    """Open a bucket whose objects are files in a folder."""
    from obstore.store import LocalStore  # noqa: PLC0415 - imported by those who use stores

    return SlowBucket(address, LocalStore(dict(options)["folder"], mkdir=True))


def measure(size: Size, progress: ProgressLog) -> Measurement:
    """Run the query on both storages."""
    rows, batches, warm = CASES[size]
    progress.plan(warm + batches)
    folder = scratch(workspace(), "storage")
    case = Case("panes", True, 1_200, 0, 0, 10_000, SHARDS * (8 << 20), 0)
    plan, stream = case.plan, AgentInteractions(rate=case.rate)

    def opened(name: str, files: Files, root: str) -> LocalQuery:
        settings = Settings(root, str(folder / name / "run"), case.budget, shards=SHARDS)
        return LocalQuery(plan, settings, files, LocalFiles())

    options = {"folder": str(folder / "objects")}
    far = StoreFiles(options, str(folder / "copies"), connect=far_away)
    near = opened("local", LocalFiles(), str(folder / "local" / "state"))
    distant = opened("store", far, "s3://far/state")
    local, store, requests = [], [], []
    for number in range(warm + batches):
        progress.step(f"batch {number + 1}")
        batch = batch_of(plan, stream, number * rows, rows)
        local.append(_fed(near, number, batch)[0])
        seconds, made = _fed(distant, number, batch)
        store.append(seconds)
        requests.append(made)
    near.close()
    distant.close()
    measured = requests[warm:]
    most = max(each["mostOfATask"] for each in measured)
    ratio = statistics.median(local[warm:]) / statistics.median(store[warm:])
    figures = {
        "rows_per_batch": rows,
        "batches": batches,
        "shards": SHARDS,
        "local_events_per_second": rows / statistics.median(local[warm:]),
        "store_events_per_second": rows / statistics.median(store[warm:]),
        "requests_of_a_task": statistics.median(each["mostOfATask"] for each in measured),
        "most_requests_of_a_task": most,
        "requests_of_a_commit": statistics.median(each["commit"] for each in measured),
        "requests_of_cleaning": statistics.mean(each["cleaning"] for each in measured),
        "ratio": ratio,
    }
    return Measurement(
        figures,
        (
            Bar.at_least("rate against the local disk", 0.7, ratio),
            Bar.at_most("requests of a task and version", 4, most),
        ),
    )


def _fed(query: LocalQuery, number: int, batch: pa.RecordBatch) -> tuple[float, dict[str, int]]:
    """Feed a batch; return its seconds and its requests."""
    began = time.perf_counter()
    (delivery,) = query.driver.batch(number, [[batch]])
    return time.perf_counter() - began, delivery.progress["icestream"]["storageRequests"]


def plot(figures: Figures, target: Path) -> None:
    """Draw both rates side by side."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - measuring needs no plots

    chart, axes = plt.subplots(figsize=(5, 3))
    rates = [figures[f"{name}_events_per_second"] / 1e6 for name in ("local", "store")]
    axes.bar(["local disk", "object store"], rates)
    axes.set_ylabel("million events a second")
    chart.tight_layout()
    chart.savefig(target)
    plt.close(chart)


BENCH = Bench(
    "storage",
    "windows keep 0.7 of their rate with the state in a store 20 ms away, 4 requests a task",
    measure,
    plot,
)
