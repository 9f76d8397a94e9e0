"""Environments of peers under `.peers/NAME`, created once.

Idea: a peer pins older versions of packages that Icestream uses too, so it gets a virtual
environment of its own; its script there imports nothing of Icestream. `make peers` creates the same
folders.

Invariants:
1. An environment that has the package is used as it is
   (`test_a_ready_environment_is_used_as_it_is`).
2. A failed installation leaves no folder behind that looks ready
   (`test_a_failed_installation_leaves_no_environment`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.registry import ProgressLog
from icestream.core.errors import StorageError

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Peer:
    """Another system: what to install, and what to import to check it."""

    name: str
    requirement: str
    module: str


FLINK = Peer("flink", "apache-flink>=2.3,<2.4", "pyflink")


def python_of(peer: Peer, root: Path, progress: ProgressLog) -> Path:
    """Return the Python of a peer's environment; create the environment if it is missing."""
    home = root / ".peers" / peer.name
    python = home / "bin" / "python"
    if _has(python, peer.module):
        return python
    progress.note(f"installing {peer.requirement} into {home.relative_to(root)}, once")
    try:
        _call(sys.executable, "-m", "venv", "--clear", str(home))
        _call(str(python), "-m", "pip", "install", "--quiet", peer.requirement)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(home, ignore_errors=True)
        tail = "\n".join(str(error.stdout).splitlines()[-_SHOWN:])
        msg = f"could not install {peer.requirement}; is the package index reachable?\n{tail}"
        raise StorageError(msg) from error
    return python


def _has(python: Path, module: str) -> bool:
    """Return whether an environment can import a module."""
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return (
        python.is_file() and subprocess.run([str(python), "-c", look], check=False).returncode == 0
    )


def _call(*command: str) -> None:
    subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
