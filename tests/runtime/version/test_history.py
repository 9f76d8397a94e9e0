from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icestream.core.process import lives, this_process
from icestream.runtime.version.history import (
    LINKS,
    NEWER,
    OLDER,
    QueryHistory,
    history_folder,
    known_checkpoints,
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def lines(folder: Path, name: str = NEWER) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "history" / name).read_text().splitlines()]


def test_a_history_reports_what_it_was_what_it_did_and_how_it_ended(tmp_path: Path) -> None:
    history = QueryHistory(str(tmp_path / "chk"), {"name": "orders", "shards": 2})
    history.start()
    history.progress({"version": 1, "rows": np.int64(3), "rate": np.float64(0.5)})
    history.end(ValueError("no more"))
    start, progress, end = lines(tmp_path / "chk")
    assert (start["kind"], start["name"], start["shards"]) == ("start", "orders", 2)
    assert lives(start["process"])
    assert progress == {"kind": "progress", "version": 1, "rows": 3, "rate": 0.5}
    assert (end["kind"], end["error"]) == ("end", "ValueError: no more")


def test_runs_of_a_query_follow_each_other(tmp_path: Path) -> None:
    for _ in range(2):
        history = QueryHistory(str(tmp_path), {})
        history.start()
        history.end(None)
    assert [each["kind"] for each in lines(tmp_path)] == ["start", "end"] * 2


def test_bounded_a_history_forgets_its_oldest_half(tmp_path: Path) -> None:
    history = QueryHistory(str(tmp_path), {"name": "q"}, half_bytes=4000)
    history.start()
    for version in range(1, 500):
        history.progress({"version": version})
        for name in (NEWER, OLDER):
            path = tmp_path / "history" / name
            assert not path.exists() or path.stat().st_size <= 4000 + 400
    kept = [*lines(tmp_path, OLDER), *lines(tmp_path)]
    assert lines(tmp_path)[0]["kind"] == "start"
    versions = [each["version"] for each in kept if each["kind"] == "progress"]
    assert versions == list(range(versions[0], 500))
    assert len(versions) > 50


def test_a_history_is_private(tmp_path: Path) -> None:
    history = QueryHistory(str(tmp_path / "chk"), {})
    history.start()
    folder = tmp_path / "chk" / "history"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / NEWER).stat().st_mode & 0o777 == 0o600


def test_crash_a_disk_that_refuses_ends_the_history_only(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file where the folder would be")
    history = QueryHistory(str(tmp_path), {})
    history.start()
    history.progress({"version": 1})
    history.end(None)
    assert (tmp_path / "history").read_text() == "a file where the folder would be"


def test_crash_a_line_that_was_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    history = QueryHistory(str(tmp_path), {})
    history.start()
    with (tmp_path / "history" / NEWER).open("ab") as file:
        file.write(b'{"kind":"progr')
    again = QueryHistory(str(tmp_path), {})
    again.start()
    text = (tmp_path / "history" / NEWER).read_text().splitlines()
    assert len(text) == 3
    assert json.loads(text[2])["kind"] == "start"


def test_queries_are_found_by_their_user(tmp_path: Path) -> None:
    for name in ("a", "b"):
        QueryHistory(str(tmp_path / name), {}).start()
        stamp = {"a": 1_000, "b": 2_000}[name]
        for link in (tmp_path / "state" / "icestream" / "queries").iterdir():
            if link.read_text().strip().endswith(name):
                os.utime(link, (stamp, stamp))
    assert known_checkpoints() == [str(tmp_path / "b"), str(tmp_path / "a")]
    (tmp_path / "b" / "history" / NEWER).unlink()
    assert known_checkpoints() == [str(tmp_path / "a")]


def test_bounded_links_of_old_queries_are_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "icestream" / "queries"
    folder.mkdir(parents=True)
    for number in range(LINKS + 20):
        (folder / f"{number}").write_text("/nowhere\n")
    QueryHistory(str(tmp_path / "new"), {}).start()
    assert len(list(folder.iterdir())) == LINKS


def test_a_checkpoint_elsewhere_has_its_history_with_the_user(tmp_path: Path, state: Path) -> None:
    QueryHistory("s3://bucket/chk", {}).start()
    assert history_folder("s3://bucket/chk").is_relative_to(state)
    assert known_checkpoints() == ["s3://bucket/chk"]


def test_a_process_lives_only_as_itself() -> None:
    assert lives(this_process()) is True
    assert lives({**this_process(), "began": 5.0}) is False
    assert lives({**this_process(), "host": "elsewhere"}) is None
