"""Check whether Icestream can run on this machine, and measure how fast its disk commits.

Idea: each check is a function that returns one `Finding`: the subject, the result and, if something
is missing, advice. The disk is measured with the steps of a commit: write a file and fsync it.
Nothing here starts Spark, nor a JVM other than `java -version`.

Invariants:
1. A finding that is not fine has advice (`test_every_finding_that_is_not_fine_has_advice`).
2. The measured folder is left as it was (`test_measuring_leaves_the_folder_as_it_was`).

Cost: writes `PROBE_BYTES` once, plus `SYNCS` small synced files.

Limits: a virtual disk may acknowledge an fsync before the data is safe; this cannot be detected.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import psutil

from icestream.core.units import format_bytes

OLDEST_PYTHON = (3, 11)
OLDEST_SPARK = (4, 1)
OLDEST_JAVA = 17
#: with less memory, Spark and one small query leave no room for state
LEAST_MEMORY = 2 << 30
LEAST_DISK = 1 << 30
PROBE_BYTES = 64 << 20
SYNCS = 16
#: slower syncs of small writes, in seconds, dominate the time of a batch
SLOW_SYNC = 0.05
_BLOCK = 1 << 20
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}


class Health(StrEnum):
    """The severity of a finding."""

    FINE = "fine"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    health: Health
    #: what was found, as text
    found: str
    #: what to do; empty when fine
    advice: str = ""
    #: what was found, as numbers
    values: dict[str, float | int | str] = field(default_factory=dict)


def examine(folder: Path) -> list[Finding]:
    """Run all checks of the doctor; the disk is measured in `folder`, which must exist."""
    return [
        check_python(),
        check_spark(),
        check_java(),
        check_cores(),
        check_memory(),
        check_process(),
        check_space(folder),
        measure_disk(folder, size=PROBE_BYTES, syncs=SYNCS),
    ]


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Check the version of the running interpreter."""
    found = ".".join(map(str, version))
    if version[:2] < OLDEST_PYTHON:
        advice = f"install Python {_dotted(OLDEST_PYTHON)} or newer"
        return Finding("python", Health.FAILURE, found, advice, {"version": found})
    return Finding("python", Health.FINE, found, values={"version": found})


def check_spark() -> Finding:
    """Check the version of the installed pyspark, without importing it."""
    wanted = f"pip install 'pyspark>={_dotted(OLDEST_SPARK)},<5'"
    try:
        found = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        return Finding("spark", Health.FAILURE, "pyspark is not installed", wanted)
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if numbers < OLDEST_SPARK:
        return Finding("spark", Health.FAILURE, found, wanted, {"version": found})
    return Finding("spark", Health.FINE, found, values={"version": found})


def check_java() -> Finding:
    """Check the Java that Spark would start: JAVA_HOME if set, else the one on PATH."""
    advice = (
        f"install Java {OLDEST_JAVA} or newer (Debian: apt-get install openjdk-17-jre-headless) "
        "and set JAVA_HOME if it is not on PATH"
    )
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if program is None:
        return Finding("java", Health.FAILURE, "no java on PATH, JAVA_HOME is not set", advice)
    try:
        run = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return Finding("java", Health.FAILURE, f"{program} does not run", advice)
    version = java_version(run.stderr + run.stdout)
    if version is None:
        return Finding("java", Health.FAILURE, f"{program} does not print its version", advice)
    values: dict[str, float | int | str] = {"version": version, "program": program}
    health = Health.FINE if version >= OLDEST_JAVA else Health.FAILURE
    advice = "" if health is Health.FINE else advice
    return Finding("java", health, f"{version} ({program})", advice, values)


def java_version(printed: str) -> int | None:
    """Parse Java's feature release for the doctor from `java -version` (`1.8` is 8)."""
    match = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(match[1]) if match else None


def check_cores() -> Finding:
    """Count the cores this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    values: dict[str, float | int | str] = {"cores": cores}
    if cores < 2:
        advice = "two cores or more let reading and computing overlap"
        return Finding("cores", Health.WARNING, "1 core", advice, values)
    return Finding("cores", Health.FINE, f"{cores} cores", values=values)


def check_memory(limit_file: Path = Path("/sys/fs/cgroup/memory.max")) -> Finding:
    """Compare the available memory with the minimum that Spark needs."""
    memory = psutil.virtual_memory()
    total, available = int(memory.total), int(memory.available)
    limit = _memory_limit(limit_file)
    if limit is not None and limit < total:
        total, available = limit, min(limit, available)
    found = f"{format_bytes(available)} of {format_bytes(total)} available"
    values: dict[str, float | int | str] = {"available": available, "total": total}
    if available < LEAST_MEMORY:
        advice = f"free memory: Spark and a small query need about {format_bytes(LEAST_MEMORY)}"
        return Finding("memory", Health.WARNING, found, advice, values)
    return Finding("memory", Health.FINE, found, values=values)


def check_process() -> Finding:
    """Measure what a worker takes besides the memory of queries: interpreter and libraries."""
    program = (
        "import icestream.runtime.version.task, icestream.runtime.version.process_memory as m; "
        "print(m.resident())"
    )
    try:
        run = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
        )
        size = int(run.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        advice = "run 'python -c \"import icestream\"' to see why a process does not start"
        return Finding("process", Health.FAILURE, "a worker process does not start", advice)
    found = f"a worker takes {format_bytes(size)} besides the memory of its query"
    return Finding("process", Health.FINE, found, values={"constant": size})


def _memory_limit(limit_file: Path) -> int | None:
    """Read the memory limit of the container; None if there is none."""
    try:
        text = limit_file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def check_space(folder: Path) -> Finding:
    """Check that the folder has space and is on a disk, not in memory."""
    free = shutil.disk_usage(folder).free
    kind = _file_system(folder)
    found = f"{format_bytes(free)} free in {folder} ({kind})"
    values: dict[str, float | int | str] = {"free": free, "folder": str(folder), "kind": kind}
    if free < LEAST_DISK:
        advice = f"free disk space, or choose a folder with more than {format_bytes(LEAST_DISK)}"
        return Finding("disk space", Health.WARNING, found, advice, values)
    if kind in _MEMORY_FILE_SYSTEMS:
        advice = "this folder is in memory: put checkpoints in a folder on a disk"
        return Finding("disk space", Health.WARNING, found, advice, values)
    return Finding("disk space", Health.FINE, found, values=values)


def _file_system(folder: Path) -> str:
    """Return the type of the file system of `folder`."""
    place = folder.resolve()
    mounts = [
        (len(part.mountpoint), part.fstype)
        for part in psutil.disk_partitions(all=True)
        if place.is_relative_to(part.mountpoint)
    ]
    return str(max(mounts)[1]) if mounts else "unknown"


def measure_disk(folder: Path, *, size: int, syncs: int) -> Finding:
    """Write and fsync one large file and several small ones in `folder`, and remove them."""
    advice = f"give write access to {folder} and free space, or choose another folder"
    try:
        with tempfile.TemporaryDirectory(prefix="icestream-doctor-", dir=folder) as scratch:
            seconds = _write_synced(Path(scratch, "large"), size)
            small = [_write_synced(Path(scratch, f"small-{i}"), 4096) for i in range(syncs)]
    except OSError as error:
        found = f"cannot write in {folder}: {error.strerror or error}"
        return Finding("disk speed", Health.FAILURE, found, advice)
    speed = int(size / seconds)
    sync = statistics.median(small)
    found = (
        f"{format_bytes(speed)}/s written and synced, {sync * 1000:.2f} ms for a small synced file"
    )
    values: dict[str, float | int | str] = {
        "bytes per second": speed,
        "seconds per small sync": sync,
        "folder": str(folder),
    }
    if sync > SLOW_SYNC:
        advice = "every batch syncs a few files; put the checkpoint on a faster disk"
        return Finding("disk speed", Health.WARNING, found, advice, values)
    return Finding("disk speed", Health.FINE, found, values=values)


def _write_synced(path: Path, size: int) -> float:
    """Create a file of random bytes, fsync it, and return the seconds this took."""
    block = os.urandom(min(size, _BLOCK))
    start = time.perf_counter()
    with path.open("xb") as file:
        for written in range(0, size, _BLOCK):
            file.write(block[: size - written])
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


def describe_machine() -> dict[str, str]:
    """Describe the machine that the doctor examined, for reports."""
    return {"system": platform.platform(), "machine": platform.machine()}


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
