"""What processes take besides the budget."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from icestream.runtime.version import process_memory


def test_the_constant_of_a_process_is_measured_once() -> None:
    base = process_memory.base()
    held = bytearray(32 << 20)
    assert process_memory.base() == base > 0
    measured = process_memory.measured(0)
    assert measured["process"].endswith(f":{os.getpid()}")
    assert measured["base"] == base
    assert len(held) > 0


def test_processes_are_counted_once() -> None:
    one = {"process": "host:1", "base": 10, "resident": 25}
    two = {"process": "host:2", "base": 10, "resident": 5}
    assert process_memory.processes_report([one, two, one]) == {
        "processes": 2,
        "processConstantBytes": 20,
        "processAddedBytes": 15,
    }
    assert process_memory.processes_report([])["processes"] == 0


_FREED = """
import numpy as np
from icestream.runtime.spark.daemon import keep_freed_memory
keep_freed_memory()
import pyarrow as pa
import pyarrow.compute as pc
from icestream.runtime.version import process_memory
process_memory.base()
blocks = [np.ones(12_000) for _ in range(1_000)]  # 96 MB in blocks that malloc keeps
ones = pa.array(np.ones(12_000))
columns = [pc.add(ones, 1) for _ in range(1_000)]  # as much that Arrow keeps
last = np.ones(10), pc.add(ones, 1)
del blocks, columns
for promised in (256 << 20, 0):
    print((process_memory.measured(promised)["resident"] - process_memory.base()) >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measured on Linux only")
def test_bounded_freed_memory_beyond_the_promise_is_given_back() -> None:
    run = subprocess.run([sys.executable, "-c", _FREED], capture_output=True, text=True, check=True)
    promised, beyond = map(int, run.stdout.split())
    assert promised > 150
    assert beyond < 48
