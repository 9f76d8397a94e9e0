from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from icestream.commands.ui import ui_command
from icestream.core.errors import DefinitionError
from tests.fixtures.histories import write_history


def listed(capsys: pytest.CaptureFixture[str], checkpoints: list[str]) -> list[str]:
    """Run the command, ask its page for the queries, end it."""
    until = threading.Event()
    command = threading.Thread(
        target=ui_command, args=(checkpoints, 0), kwargs={"open_": False, "until": until}
    )
    command.start()
    printed, deadline = "", time.monotonic() + 10
    while "http" not in printed and time.monotonic() < deadline:
        time.sleep(0.01)
        printed += capsys.readouterr().out
    try:
        [address] = re.findall(r"http://\S+", printed)
        with urlopen(f"{address}api/queries", timeout=10) as answer:
            return sorted(each["name"] for each in json.load(answer))
    finally:
        until.set()
        command.join()


def test_the_command_shows_the_checkpoints_it_is_given(
    checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert listed(capsys, [str(checkpoints / "joins")]) == ["joins"]
    assert listed(capsys, [str(checkpoints)]) == ["groups", "joins", "updates", "windows"]


def test_the_command_shows_the_last_queries_if_it_is_given_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_history(str(tmp_path / "one"), "windows", versions=2)
    assert listed(capsys, []) == ["windows"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"there is no folder .*nowhere"):
        ui_command([str(tmp_path / "nowhere")], 0, open_=False)
