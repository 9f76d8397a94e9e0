from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from icestream.dashboard.query_list import QueryList
from icestream.dashboard.server import DashboardServer
from tests.fixtures.histories import KINDS, write_history

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint of every kind; joins have ended, the others run."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for kind in KINDS:
        write_history(str(folder / kind), kind, versions=60, ended=kind == "joins")
    return folder


@pytest.fixture(scope="module")
def page(checkpoints: Path) -> Iterator[DashboardServer]:
    with DashboardServer(QueryList([str(checkpoints)])) as served:
        yield served


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of a Chromium, installed where that is possible."""
    found = subprocess.run(
        [ROOT / "tools" / "chromium.sh"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip(f"no Chromium to test with: {' '.join(found.stderr.split())}")
    return found.stdout.strip()
