from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from icestream.core.process import this_process
from icestream.dashboard.query_list import QueryList, WatchedQuery
from icestream.runtime.version.history import NEWER, QueryHistory
from tests.fixtures.histories import write_history


def started(checkpoint: Path, **about: Any) -> QueryHistory:
    history = QueryHistory(str(checkpoint), {"name": "q", **about})
    history.start()
    return history


def watched(checkpoint: Path) -> WatchedQuery:
    query = WatchedQuery(str(checkpoint))
    query.look()
    return query


def test_a_query_runs_until_its_history_ends(tmp_path: Path) -> None:
    history = started(tmp_path)
    query = watched(tmp_path)
    assert query.state == "running"
    history.end(None)
    query.look()
    assert query.state == "ended"
    started(tmp_path)
    query.look()
    assert query.state == "running"


def test_a_query_that_failed_says_why(tmp_path: Path) -> None:
    started(tmp_path).end(ValueError("no such column"))
    reported = watched(tmp_path).summary()
    assert reported["state"] == "failed"
    assert reported["error"] == "ValueError: no such column"


def test_a_query_whose_process_is_gone_is_lost(tmp_path: Path) -> None:
    code = (
        "import sys, icestream.runtime.version.history as h;"
        "h.QueryHistory(sys.argv[1], {'name': 'q'}).start()"
    )
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=environment)
    assert watched(tmp_path).state == "lost"


@pytest.mark.parametrize(
    ("process", "state"),
    [
        ({**this_process(), "host": "another"}, "unknown"),
        ({**this_process(), "began": 1.0}, "lost"),
        ({**this_process(), "pid": "x"}, "lost"),
        ({**this_process(), "pid": 10**30}, "lost"),
        ({"host": this_process()["host"]}, "lost"),
        ("text", "lost"),
    ],
)
def test_a_process_is_told_by_more_than_its_number(
    tmp_path: Path, process: Any, state: str
) -> None:
    (tmp_path / "history").mkdir()
    line = {"kind": "start", "process": process}
    (tmp_path / "history" / NEWER).write_text(json.dumps(line) + "\n")
    assert watched(tmp_path).state == state


def test_oracle_asking_for_what_is_new_gives_every_version_once(tmp_path: Path) -> None:
    history = started(tmp_path)
    query, seen, after = WatchedQuery(str(tmp_path)), [], 0
    for version in range(1, 50):
        history.progress({"version": version, "icestream": {}, "numInputRows": 3})
        if version % 7 == 0 or version == 49:
            query.look()
            records = query.detail(after)["records"]
            seen += [record["version"] for record in records]
            after = records[-1]["number"]
    assert seen == list(range(1, 50))
    assert query.events == 3 * 49


def test_bounded_only_the_last_versions_are_held(tmp_path: Path) -> None:
    write_history(str(tmp_path), "windows", versions=40)
    query = WatchedQuery(str(tmp_path), held=10)
    query.look()
    assert [record["version"] for record in query.detail()["records"]] == list(range(31, 41))
    assert query.summary()["versions"] == 40


def test_a_query_without_a_name_has_that_of_its_folder(tmp_path: Path) -> None:
    for folder, name in (("orders", "orders"), ("calls/checkpoint", "calls")):
        started(tmp_path / folder, name=None)
        assert watched(tmp_path / folder).name == name


def test_checkpoints_inside_of_folders_are_found(tmp_path: Path) -> None:
    for place in ("a", "deep/b", "deep/er/c"):
        write_history(str(tmp_path / place), "windows", versions=1)
    library = QueryList([str(tmp_path)])
    found = sorted(os.path.basename(each["checkpoint"]) for each in library.queries())
    assert found == ["a", "b", "c"]
    write_history(str(tmp_path / "later"), "windows", versions=1)
    assert len(library.queries()) == 4


def test_lines_that_lie_about_their_kind_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "history").mkdir()
    odd = [
        {"kind": "progress", "icestream": 3},
        {"kind": "progress", "icestream": {}, "numInputRows": "many"},
        {"kind": "start", "plan": [1], "name": 5, "process": None},
        {"kind": "end", "error": {"a": 1}},
        {"kind": ["x"]},
        {},
    ]
    text = "".join(json.dumps(each) + "\n" for each in odd)
    (tmp_path / "history" / NEWER).write_text(text)
    reported = watched(tmp_path).detail()
    assert reported["plan"] is None
    assert reported["name"] == "5"
    assert len(reported["records"]) == 1
