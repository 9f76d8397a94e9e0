from __future__ import annotations

import numpy as np
import pytest

from bench.research.window_blocks.layout import PAGE, BlockLayout, Frames
from icestream.core.errors import DamageError, DefinitionError

COLUMNS = (("time", "i8"), ("price", "f8"), ("symbol", "i4"), ("volume", "i4"))


def test_a_block_of_64_kb_takes_what_the_formula_says() -> None:
    layout = BlockLayout(COLUMNS)
    assert layout.tuple_bytes == 24
    assert layout.factor == (64 << 10) // 24


def test_columns_do_not_overlap() -> None:
    frames = Frames(BlockLayout(COLUMNS, PAGE), 3)
    for number, column in enumerate(frames.columns):
        column[:] = number + np.arange(3)[:, None]
    for number, column in enumerate(frames.columns):
        assert (column == number + np.arange(3)[:, None]).all()
        assert column.shape == (3, (PAGE - 16) // 24)


def test_frames_are_aligned_to_pages() -> None:
    frames = Frames(BlockLayout(COLUMNS, PAGE), 3)
    for frame in range(3):
        assert np.frombuffer(frames.block(frame), np.uint8).ctypes.data % PAGE == 0


@pytest.mark.parametrize("byte", [0, 9, 16, PAGE - 1])
def test_a_changed_block_is_damage(byte: int) -> None:
    frames = Frames(BlockLayout(COLUMNS, PAGE), 1)
    frames.columns[1][0] = 2.5
    frames.seal(0, 7)
    frames.check(0, 7, "blocks")
    frames.block(0)[byte] ^= 1
    with pytest.raises(DamageError, match="window block 7"):
        frames.check(0, 7, "blocks")


def test_a_block_of_another_number_is_damage() -> None:
    frames = Frames(BlockLayout(COLUMNS, PAGE), 1)
    frames.seal(0, 7)
    with pytest.raises(DamageError, match="window block 8"):
        frames.check(0, 8, "blocks")


@pytest.mark.parametrize(
    ("layout", "reported"),
    [
        (((), PAGE, 0), "first column"),
        (((("time", "i4"),), PAGE, 0), "first column"),
        (((("time", "i8"), ("a", "i4"), ("b", "f8")), PAGE, 0), "wider columns"),
        ((COLUMNS, 100, 0), "multiple of 4096"),
        ((COLUMNS, PAGE, 171), "fits 170 tuples"),
    ],
)
def test_what_does_not_fit_is_refused(layout: tuple[object, ...], reported: str) -> None:
    with pytest.raises(DefinitionError, match=reported):
        BlockLayout(*layout)  # type: ignore[arg-type]
