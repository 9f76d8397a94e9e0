from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import StorageError
from icestream.operators.grid.suffix_stack import SuffixStack


@given(st.lists(st.none() | st.integers(1, 9), max_size=30))
@settings(max_examples=30)
def test_parity_stack_beside_a_list(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[int | None]
) -> None:
    path = str(tmp_path_factory.mktemp("stack") / "fronts")
    stack = SuffixStack(path, 3, 0)
    known: list[list[list[int]]] = []
    for number, rows in enumerate(drawn):
        if rows is not None:
            block = np.arange(rows * 3).reshape(rows, 3) + 100 * number
            stack.push(block)
            known.append(block.tolist())
        elif known:
            expected = known.pop()
            assert stack.pop(len(expected)).tolist() == expected
        stack = SuffixStack(path, 3, stack.size)
    stack.clear()
    assert not os.path.exists(path)
    stack.clear()


def test_a_stack_takes_the_place_of_another(tmp_path: Path) -> None:
    one, other = (SuffixStack(str(tmp_path / name), 1, 0) for name in ("one", "other"))
    for stack, first in ((one, 0), (other, 5)):
        stack.push(np.arange(first, first + 3).reshape(3, 1))
    one.replace(other)
    assert (one.size, other.size) == (24, 0)
    other.push(np.array([[9]]))
    assert one.pop(3).tolist() == [[5], [6], [7]]
    assert other.pop(1).tolist() == [[9]]
    one.push(np.array([[1]]))
    one.replace(other)
    assert one.size == 0


def test_blocks_may_be_views_of_a_wider_table(tmp_path: Path) -> None:
    stack = SuffixStack(str(tmp_path / "fronts"), 2, 0)
    table = np.arange(20).reshape(4, 5)
    stack.push(table[:, 1:3])
    assert stack.pop(4).tolist() == table[:, 1:3].tolist()


def test_a_full_disk_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = SuffixStack(str(tmp_path / "fronts"), 1, 0)
    monkeypatch.setattr(os, "pwrite", lambda *_: 3)
    with pytest.raises(StorageError, match="disk is full; free disk space"):
        stack.push(np.zeros((1, 1), dtype=np.int64))

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(StorageError, match="No space left"):
        stack.push(np.zeros((1, 1), dtype=np.int64))
    assert stack.size == 0


def test_more_than_there_is_cannot_be_taken(tmp_path: Path) -> None:
    stack = SuffixStack(str(tmp_path / "fronts"), 3, 0)
    stack.push(np.zeros((2, 3), dtype=np.int64))
    with pytest.raises(StorageError, match="ends too early"):
        stack.pop(3)
