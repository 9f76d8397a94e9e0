"""The signatures that are compiled beforehand."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from icestream.core.errors import IcestreamError
from icestream.kernels.compile import PLAIN
from icestream.kernels.signatures import compile_known, known_signatures, read_type
from tools.kernel_signatures import written_type

WARMED = """
from tools.kernel_signatures import dispatchers
from icestream.runtime.spark import warm_up

warm_up.kernels()
called = [each for _, each in dispatchers() if each.stats.cache_hits or each.stats.cache_misses]
compiled = [each.__name__ for each in called if each.stats.cache_misses]
print(len(called) > 20, compiled)
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
def test_warmed_queries_compile_nothing() -> None:
    seen: list[int] = []
    assert compile_known(2, lambda done, total: seen.append(done)) == seen[-1]
    run = subprocess.run(
        [sys.executable, "-c", WARMED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split(maxsplit=1) == ["True", "[]\n"]
