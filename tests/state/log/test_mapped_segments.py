"""Segments that are mapped."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from icestream.state.files import LocalFiles
from icestream.state.log.mapped_segments import MappedSegments
from icestream.state.log.reader import Log
from icestream.state.log.writer import SegmentWriter


def log_in(folder: Path, segments: int, codec: str | None = None) -> Log:
    infos = {}
    for ordinal in range(segments):
        path = str(folder / f"{ordinal}.seg")
        with SegmentWriter(LocalFiles(), path, ordinal, codec=codec) as writer:
            writer.append(np.full(400, ordinal))
            infos[ordinal] = writer.finish()
    return Log(LocalFiles(), str(folder), infos)


def test_a_segment_is_mapped_once(tmp_path: Path) -> None:
    log = log_in(tmp_path, 4)
    maps = MappedSegments(log)
    with mock.patch.object(log, "mapped", wraps=log.mapped) as mapped:
        assert maps.add((2, 0))
        assert maps.add((2, 3))
        assert not maps.add((0, 2, 3))
        assert mapped.call_count == 3
    assert maps.table[0].tolist() == [0, 2, 3]
    for ordinal in (3, 1):
        words = maps.words(ordinal)
        assert words is not None
        assert words[:400].tolist() == [ordinal] * 400
        maps.rest()
        assert words[:400].tolist() == [ordinal] * 400
    maps.clear()
    assert maps.table.shape == (3, 0)
    assert maps.add((1,))


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_bounded_few_segments_are_mapped(tmp_path: Path, codec: str | None) -> None:
    maps = MappedSegments(log_in(tmp_path, 6, codec), most=4)
    assert maps.add(range(6)) == (codec is None)
    assert maps.table.shape[1] == (4 if codec is None else 0)
    assert maps.words(5) is None
