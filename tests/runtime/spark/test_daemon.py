from __future__ import annotations

import pytest

from icestream.runtime.spark.daemon import ending_quietly


def test_a_worker_that_nobody_listens_to_ends_without_a_word() -> None:
    def deserted(*_: object) -> int:
        raise BrokenPipeError

    assert ending_quietly(deserted)("socket", True) == 1


def test_a_worker_that_fails_otherwise_says_so() -> None:
    def broken(*_: object) -> int:
        msg = "no memory"
        raise OSError(msg)

    with pytest.raises(OSError, match="no memory"):
        ending_quietly(broken)()
    assert ending_quietly(lambda *taken: len(taken))(1, 2) == 2
