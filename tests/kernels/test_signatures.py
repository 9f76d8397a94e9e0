"""The signatures that are compiled beforehand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from icestream.core.errors import IcestreamError
from icestream.kernels.code_cache import code_folder
from icestream.kernels.compile import PLAIN
from icestream.kernels.signatures import compile_known, known_signatures, read_type
from tools.kernel_signatures import written_type
from tools.kernel_wheel import kernel_wheel

WARMED = """
import tempfile
from tools.kernel_signatures import dispatchers
from icestream.kernels.code_cache import compiling
from icestream.runtime.spark import warm_up
from tests.fixtures.checkpoints import KINDS, make

warm_up.kernels()
for kind in KINDS:
    with tempfile.TemporaryDirectory() as folder:
        make(kind, folder, 3)
called = [each for _, each in dispatchers() if each.stats.cache_hits or each.stats.cache_misses]
compiled = [each.__name__ for each in called if each.stats.cache_misses]
print(len(called) > 100, compiling.count, compiled)
"""


def test_types_read_back_as_they_were_written() -> None:
    texts = [text for each in known_signatures().values() for one in each for text in one]
    different = {json.dumps(each): each for each in texts}
    assert len(different) > 30
    for text in different.values():
        assert written_type(read_type(text)) == text


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(IcestreamError, match="unknown type 'int65'"):
        read_type("int65[:]")


@pytest.mark.skipif(PLAIN, reason="kernels are not compiled")
def test_warmed_queries_compile_nothing(tmp_path: Path) -> None:
    seen: list[int] = []
    assert compile_known(2, lambda done, total: seen.append(done)) == seen[-1]
    assert warm_up_with() == ["True", "0", "[]\n"]
    # the same code from an installed wheel, in a process with an empty folder of its own
    with ZipFile(kernel_wheel(Path(str(code_folder())), tmp_path)) as wheel:
        wheel.extractall(tmp_path / "site")
    found = warm_up_with(str(tmp_path / "site"), NUMBA_CACHE_DIR=str(tmp_path / "own"))
    assert found == ["True", "0", "[]\n"]
    assert not list((tmp_path / "own").rglob("*.nbc"))


def warm_up_with(*path: str, **variables: str) -> list[str]:
    """Run queries of every kind in a new process; return whether kernels ran, and what compiled."""
    run = subprocess.run(
        [sys.executable, "-c", WARMED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*path, *sys.path]), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.split(maxsplit=2)
