"""Running systems side by side, each in a process of its own.

Idea: a bench passes a system its runs as plain data; a finished run is shown at once. A peer that
cannot run leaves its figures empty and reports the reason, and the bench goes on.

Invariant: a rate that changed too much while it was measured is reported
(`test_a_stalled_measurement_is_called_unsteady`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import rows
from bench.peer_environments import FLINK, python_of
from bench.processes import ProcessFailed, results
from bench.registry import ProgressLog
from icestream.core.errors import StorageError

#: ratio of fastest to slowest quarter from which a measurement is called unsteady
UNSTEADY = 3.0
#: seconds after which a process is stopped with its results so far
LIMIT = 1_200.0

#: state backends of Flink
BACKENDS = {"heap": "hashmap", "rocksdb": "rocksdb"}

Run = dict[str, Any]


def watched(
    command: Sequence[str],
    plan: Run,
    system: str,
    progress: ProgressLog,
    *,
    memory: bool = False,
    limit: float | None = None,
) -> list[dict[str, Any]]:
    """Run a process and show each of the plan's runs as a step; results may have its memory.

    With a limit each run has as many seconds; one that takes longer is left out, and a new process
    does the others.
    """
    names = [run["name"] for run in plan["runs"]]
    waiting = iter(names[1:])
    progress.step(f"{system}: {names[0]}")

    def show(result: dict[str, Any]) -> None:
        eps = result.get("eps")
        progress.note(f"{system} {result['name']}: {f'{eps:,.0f} events/s' if eps else 'done'}")
        following = next(waiting, None)
        if following is not None:
            progress.step(f"{system}: {following}")

    allowed, each = LIMIT if limit is None else limit, limit is not None
    found = results(command, plan, limit=allowed, memory=memory, each=each, on_result=show)
    if len(found) == len(names):
        return found
    left = plan["runs"][len(found) + 1 :] if each else []
    count = len(names) - len(found) - len(left)
    progress.note(f"{system}: stopped after {allowed:g} s, {count} not measured")
    rest = {**plan, "runs": left}
    more = watched(command, rest, system, progress, memory=memory, limit=limit) if left else []
    return found + more


def peer(measured: Callable[[], dict[str, Any]], progress: ProgressLog) -> dict[str, Any]:
    """Measure a peer; one that cannot run is reported and has no figures."""
    try:
        return measured()
    except (ProcessFailed, StorageError) as error:
        progress.note(f"left out: {error}")
        return {}


def grouped(runs: list[Run], apart: bool) -> Iterator[list[Run]]:
    """Give each run a process of its own, or all of them one."""
    if apart:
        yield from ([run] for run in runs)
    else:
        yield runs


def flink(
    runs: list[Run],
    root: Path,
    apart: bool,
    progress: ProgressLog,
    shape: rows.StreamShape = rows.SPARSE,
) -> dict[str, Any]:
    """Run Flink; return rates or totals by run, its version, and unsteady rates."""
    python = python_of(FLINK, root, progress)
    # -E: ignore this environment's PYTHONPATH
    command = [str(python), "-E", str(Path(__file__).parent / "peers" / "flink_hop.py")]
    found: dict[str, Any] = {}
    for group in grouped(runs, apart):
        plan = {"constants": rows.constants(shape), "runs": group}
        for result in watched(command, plan, "flink", progress):
            found["version"] = result["version"]
            found[result["name"]] = result.get("eps", result.get("totals"))
            if unsteady(result.get("quarters", [])):
                found.setdefault("unsteady", []).append(result["name"])
    return found


def unsteady(quarters: list[float]) -> bool:
    """Return whether a rate changed too much while it was measured to be quoted."""
    return bool(quarters) and max(quarters) > UNSTEADY * min(quarters)
