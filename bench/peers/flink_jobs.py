"""Running jobs of Flink in this process: configuration, and metrics from its REST interface.

Needs apache-flink, nothing of Icestream; scripts next to it import it by its bare name.
"""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from pyflink.common import Configuration  # type: ignore[import-not-found]

#: seconds between two lookups of a job's counter
LOOK = 0.25
#: seconds a job has to show its counter
PATIENCE = 60.0


def configured(run: dict[str, Any], port: int, checkpoints: str) -> Configuration:
    """Set up parallelism, state backend, mini-batches and checkpoints, and a run's own options."""
    options = {
        "rest.address": "127.0.0.1",
        "rest.port": str(port),
        "metrics.fetcher.update-interval": "100",
        "parallelism.default": str(run["cores"]),
        "pipeline.object-reuse": "true",
        "table.local-time-zone": "UTC",
        "state.backend.type": run["backend"],
        "taskmanager.memory.managed.size": run["managed_memory"],
        "execution.checkpointing.interval": run["checkpoint_every"],
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.dir": f"file://{checkpoints}",
    }
    if run["mini_batch"]:
        options |= {
            "table.exec.mini-batch.enabled": "true",
            "table.exec.mini-batch.allow-latency": "1 s",
            "table.exec.mini-batch.size": "20000",
        }
    chosen = Configuration()
    for name, value in (options | run.get("options", {})).items():
        chosen.set_string(name, value)
    return chosen


def counter(port: int, job: str, begins: str, ends: str) -> Callable[[], float]:
    """Return a function that reads a metric of a running job, summed over its subtasks."""
    vertices = f"http://127.0.0.1:{port}/jobs/{job}/vertices"
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        time.sleep(LOOK)
        for vertex in fetch(f"http://127.0.0.1:{port}/jobs/{job}")["vertices"]:
            metrics = f"{vertices}/{vertex['id']}/subtasks/metrics"
            for metric in fetch(metrics):
                name = metric["id"]
                if name.startswith(begins) and name.endswith(ends):
                    asked = f"{metrics}?get={quote(name)}&agg=sum"
                    return lambda: float(fetch(asked)[0]["sum"])
    msg = f"the job showed no counter {begins}...{ends} within {PATIENCE:g} s"
    raise TimeoutError(msg)


def fetch(address: str) -> Any:
    """Read JSON from Flink's REST interface."""
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
        return json.load(answer)


def free_port() -> int:
    """Find a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
