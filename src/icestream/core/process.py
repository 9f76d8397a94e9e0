"""Which process this is, and whether another one still lives."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import psutil

#: seconds by which two readings of one process's start may differ
_SAME_START = 1.0


def this_process() -> dict[str, Any]:
    """Return what tells this process from all others, on all hosts and at all times."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "began": psutil.Process(pid).create_time()}


def lives(process: Mapping[str, Any]) -> bool | None:
    """Tell whether the process that `this_process` described lives; None where nobody can tell."""
    if process.get("host") != socket.gethostname():
        return None
    try:
        found = psutil.Process(int(process["pid"]))
        same = abs(found.create_time() - float(process["began"])) < _SAME_START
        return bool(same and found.status() != psutil.STATUS_ZOMBIE)
    except (psutil.Error, KeyError, TypeError, ValueError, OverflowError):
        return False
