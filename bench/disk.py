"""What the disk did and what it can do: counters of the process and of the device, and raw speed.

Idea: a run is bracketed by two samples; their difference gives the bytes that this process really
read from the device (`/proc/self/io`; reads served by the page cache do not count), how long
requests waited (`/sys/dev/block/.../stat`, all processes), and how much of a core was used.
`raw_speed` moves blocks past the page cache and does nothing else, for comparison.

Limits: Linux. If a counter is missing, its figures are None. The queue is that of the device,
including requests of other processes.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters at an instant."""

    #: seconds, and seconds of processor time
    wall: float
    cpu: float
    #: bytes this process moved from and to the device
    read: int | None
    written: int | None
    #: milliseconds that requests spent waiting and being served, added up over all requests
    queued: int | None


@dataclass(frozen=True, slots=True)
class Used:
    """The difference of two samples."""

    seconds: float
    #: share of one core
    cpu: float
    read: int | None
    written: int | None
    #: requests waiting or being served, on average
    queue: float | None


def sample(folder: Path) -> Sample:
    """Read the counters of this process and of the device under a folder."""
    moved = _process_io()
    return Sample(
        time.perf_counter(),
        time.process_time(),
        moved.get("read_bytes"),
        moved.get("write_bytes"),
        _queued(folder),
    )


def between(first: Sample, last: Sample) -> Used:
    """Subtract two samples."""
    seconds = last.wall - first.wall
    queued = _minus(last.queued, first.queued)
    return Used(
        seconds,
        (last.cpu - first.cpu) / seconds,
        _minus(last.read, first.read),
        _minus(last.written, first.written),
        None if queued is None else queued / 1_000 / seconds,
    )


def raw_speed(folder: Path, size: int, request: int) -> dict[str, float]:
    """Move `size` bytes in requests of some size; bytes per second, one request at a time.

    "both" writes one file and reads another at once, and counts the bytes of both.
    """
    paths = [folder / "raw-0", folder / "raw-1"]
    direct = getattr(os, "O_DIRECT", 0)
    files = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | direct) for path in paths]
    out, back = mmap.mmap(-1, request), mmap.mmap(-1, request)
    out[:] = os.urandom(request)
    count = size // request

    def write(file: int) -> None:
        for i in range(count):
            os.pwrite(file, out, i * request)

    def read(file: int) -> None:
        for i in range(count):
            os.preadv(file, [back], i * request)

    try:
        return {
            "write": size / _timed([lambda: write(files[0])]),
            "read": size / _timed([lambda: read(files[0])]),
            "both": 2 * size / _timed([lambda: write(files[1]), lambda: read(files[0])]),
        }
    finally:
        for file, path in zip(files, paths, strict=True):
            os.close(file)
            path.unlink()


def _timed(jobs: list[Callable[[], None]]) -> float:
    threads = [threading.Thread(target=job) for job in jobs]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def _process_io() -> dict[str, int]:
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, value in (line.split(": ") for line in lines)}


def _queued(folder: Path) -> int | None:
    device = os.stat(folder).st_dev
    try:
        stat = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text()
    except OSError:
        return None
    return int(stat.split()[10])


def _minus(last: int | None, first: int | None) -> int | None:
    return None if last is None or first is None else last - first
