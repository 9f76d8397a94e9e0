from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from icestream.dashboard.history_reader import HistoryReader
from icestream.runtime.version.history import NEWER, OLDER, QueryHistory


def versions(reader: HistoryReader) -> list[Any]:
    return [event["version"] for event in reader.look() if event.get("kind") == "progress"]


@given(looks=st.lists(st.booleans(), min_size=1, max_size=40), half=st.integers(600, 3000))
def test_oracle_looks_at_any_time_see_the_same_events(
    tmp_path_factory: Any, looks: list[bool], half: int
) -> None:
    #   half of the file is read before it becomes the older one, or none, or all of it
    checkpoint = tmp_path_factory.mktemp("history")
    history = QueryHistory(str(checkpoint), {"name": "q"}, half)
    reader = HistoryReader(checkpoint / "history")
    history.start()
    seen = []
    for version, look in enumerate(looks):
        history.progress({"version": version, "icestream": {}})
        if look:
            seen += versions(reader)
    seen += versions(reader)
    assert seen == sorted(set(seen))
    if all(looks):
        assert seen == list(range(len(looks)))
    assert seen[-1] == len(looks) - 1


def test_a_line_that_is_not_whole_waits(tmp_path: Path) -> None:
    path = tmp_path / NEWER
    path.write_bytes(b'{"kind":"progress","version":1}\n{"kind":"pro')
    reader = HistoryReader(tmp_path)
    assert versions(reader) == [1]
    with path.open("ab") as file:
        file.write(b'gress","version":2}\n')
    assert versions(reader) == [2]
    assert versions(reader) == []


def test_what_is_no_object_is_left_out(tmp_path: Path) -> None:
    odd = [b"\xff\xfe", b"[1]", b"3", b"null", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"", b"1e5"]
    lines = [*odd, b'{"kind":"progress","version":7,"x":NaN,"y":1e999,"z":-Infinity}']
    (tmp_path / NEWER).write_bytes(b"\n".join(lines) + b"\n")
    [event] = HistoryReader(tmp_path).look()
    assert event == {"kind": "progress", "version": 7, "x": None, "y": None, "z": None}
    json.dumps(event, allow_nan=False)


@given(data=st.binary(max_size=400))
def test_any_bytes_are_read_without_an_error(tmp_path_factory: Any, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("history")
    (folder / NEWER).write_bytes(data)
    (folder / OLDER).write_bytes(data[::-1])
    assert all(isinstance(event, dict) for event in HistoryReader(folder).look())


def test_bounded_a_look_at_a_file_without_line_ends(tmp_path: Path) -> None:
    (tmp_path / NEWER).write_bytes(b"x" * 5000 + b'\n{"kind":"progress","version":1}\n')
    assert versions(HistoryReader(tmp_path, longest_line=100)) == [1]


def test_a_history_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list(HistoryReader(tmp_path / "none").look()) == []
