"""Run a bench and record what is needed to read its numbers later: machine, commit and date.

Invariants:
1. A report reads back from its JSON as it was written
   (`test_a_report_reads_back_as_it_was_written`).
2. A commit with local changes is marked (`test_a_commit_with_local_changes_says_so`).
3. A report names the code that was run (`test_a_report_names_the_code_that_ran`).

Limits: the machine's load is recorded, not prevented; a loaded machine measures low.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from bench.loaded_code import LoadedCode, watched
from bench.registry import Bar, Bench, Figures, ProgressLog, Size
from icestream.core.units import format_bytes


@dataclass(frozen=True, slots=True)
class BenchReport:
    """A measurement with its machine, date and commit."""

    bench: str
    size: str
    machine: Mapping[str, Any]
    commit: str
    date: str
    figures: Figures
    bars: tuple[Bar, ...]
    #: None in reports of before
    code: LoadedCode | None = None

    @property
    def holds(self) -> bool:
        """Whether every bar holds."""
        return all(bar.holds for bar in self.bars)

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> BenchReport:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        fields["bars"] = tuple(Bar(**bar) for bar in fields["bars"])
        if code := fields.get("code"):
            fields["code"] = LoadedCode(**code)
        return cls(**fields)


class Silent:
    """A progress log that discards everything."""

    def plan(self, steps: int) -> None:
        """Ignore."""

    def step(self, label: str) -> None:
        """Ignore."""

    def note(self, line: str) -> None:
        """Ignore."""


def run(bench: Bench, size: Size, progress: ProgressLog) -> BenchReport:
    """Measure, and add machine, commit and date."""
    root = workspace()
    machine = describe_machine(root)
    measurement, code = watched(
        bench.measure.__module__, lambda: bench.measure(size, progress), root / "src"
    )
    return BenchReport(
        bench=bench.name,
        size=size.value,
        machine={**machine, **measurement.systems},
        commit=describe_commit(root),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        figures=measurement.figures,
        bars=measurement.bars,
        code=code,
    )


def workspace(start: Path | None = None) -> Path:
    """Find the folder that holds `.peers` and `artifacts`: the checkout, or the current folder."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / "pyproject.toml").is_file():
            return folder
    return here


def scratch(root: Path, name: str) -> Path:
    """Create an empty folder for a run's output."""
    folder = root / "artifacts" / "bench" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def describe_machine(folder: Path) -> dict[str, Any]:
    """Describe processor, memory, disk and versions."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory": format_bytes(psutil.virtual_memory().total),
        "disk": _disk(folder),
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": _java(),
        "spark": metadata.version("pyspark"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def describe_commit(folder: Path) -> str:
    """Return the commit, with a `+` if files differ from it; `unknown` outside a checkout."""
    head = _said("git", "-C", str(folder), "rev-parse", "--verify", "--short=12", "HEAD")
    if not head:
        return "unknown"
    changed = _said("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    return f"{head}+" if changed else head


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _disk(folder: Path) -> str:
    """Return device, file system and free space of a folder."""
    path = folder.resolve()
    mounted = [
        part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)
    ]
    free = format_bytes(psutil.disk_usage(str(path)).free)
    if not mounted:
        return f"{free} free"
    nearest = max(mounted, key=lambda part: len(part.mountpoint))
    return f"{nearest.device} {nearest.fstype}, {free} free"


def _java() -> str:
    """Return the version of the Java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else "java"
    found = re.search(r'version "([^"]+)"', _said(command, "-version"))
    return found[1] if found else "unknown"


def _said(*command: str) -> str:
    """Run a command and return its output, or nothing if it failed."""
    try:
        ran = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return ran.stdout.strip()
