from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.state.log.format import (
    ENTRY,
    ENTRY_DTYPE,
    HEADER,
    MAX_ORDINAL,
    NO_MARKER,
    ROW,
    ROW_DTYPE,
    TRAILER,
    SegmentInfo,
    offset_of,
    ordinal_of,
    padded,
    show_marker,
)
from icestream.testing.simulated_disk import SimulatedDisk
from tests.fixtures.log_records import marker_of

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "log.md"


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_the_worked_example_of_the_page_is_what_the_code_writes() -> None:
    (program,) = code_blocks("python")
    scope: dict[str, object] = {"files": SimulatedDisk()}
    exec(compile(program, str(PAGE), "exec"), scope)
    (dump,) = code_blocks("hex")
    shown, place = b"", 0
    for line in dump.splitlines():
        at, _, digits = line.partition("  ")
        data = bytes.fromhex(digits[:48])
        assert int(at, 16) == place
        shown += data
        place += len(data)
    disk = scope["files"]
    assert isinstance(disk, SimulatedDisk)
    assert shown == disk.read("log/example")
    info = scope["info"]
    assert isinstance(info, SegmentInfo)
    (committed,) = code_blocks("json")
    assert json.loads(committed) == info.to_json()


def test_the_page_shows_every_layout_with_its_size() -> None:
    text = PAGE.read_text()
    for name, layout in (("header", HEADER), ("entry", ENTRY), ("row", ROW), ("trailer", TRAILER)):
        assert f"`{name}`, {layout.size} bytes" in text


def test_array_types_and_structs_describe_the_same_bytes() -> None:
    entry = ENTRY.pack(1, -2, -3, 4, 5, 6, 7, 8, 0)
    assert np.frombuffer(entry, dtype=ENTRY_DTYPE).tolist() == [(1, -2, -3, 4, 5, 6, 7, 8)]
    row = ROW.pack(1, 2, 3, 4, 5, 6, 7, 8)
    assert np.frombuffer(row, dtype=ROW_DTYPE).tolist() == [(1, 2, 3, 4, 5, 6, 7, 8)]
    assert (ENTRY_DTYPE.itemsize, ROW_DTYPE.itemsize) == (ENTRY.size, ROW.size)


@given(ordinal=st.integers(0, MAX_ORDINAL), word=st.integers(0, 2**32 - 1))
def test_a_marker_is_ordinal_and_offset(ordinal: int, word: int) -> None:
    marker = marker_of(ordinal, word * 8)
    assert (ordinal_of(marker), offset_of(marker)) == (ordinal, word * 8)
    assert show_marker(marker) == f"{ordinal}:{word * 8}"
    assert marker < NO_MARKER


@pytest.mark.parametrize(
    ("length", "size"), [(0, 8), (1, 8), (8, 8), (9, 16), (65536, 65536), (65537, 65544)]
)
def test_every_record_takes_its_own_aligned_place(length: int, size: int) -> None:
    assert padded(length) == size


@given(
    st.builds(
        SegmentInfo,
        ordinal=st.integers(0, MAX_ORDINAL),
        name=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,40}", fullmatch=True),
        bytes=st.integers(0, 2**40),
        records=st.integers(0, 2**32),
        expiry=st.integers(MINUS_INFINITY, INFINITY),
        footer_checksum=st.integers(0, 2**64 - 1),
    )
)
def test_an_info_survives_json(info: SegmentInfo) -> None:
    assert SegmentInfo.from_json(json.loads(json.dumps(info.to_json()))) == info
