from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from icestream.core.errors import DefinitionError
from icestream.dashboard.server import shared_page
from icestream.demo.call_centre.generator import AgentInteractions
from icestream.demo.replay import Replay
from icestream.demo.running import demo_folder, follow
from icestream.runtime.version.history import QueryHistory


class FakeQuery:
    """A query that has processed everything as soon as it is asked to."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.isActive = failure is None
        self.processed = False

    @property
    def recentProgress(self) -> Sequence[Mapping[str, Any]]:  # noqa: N802
        return []

    def processAllAvailable(self) -> None:  # noqa: N802
        if self.failure is not None:
            raise self.failure
        self.processed = True

    def stop(self) -> None: ...


class Counting:
    """A view that notes what the query had done at each look."""

    def __init__(self, query: FakeQuery) -> None:
        self.query = query
        self.seen: list[bool] = []

    def look(self) -> None:
        self.seen.append(self.query.processed)

    def page(self) -> RenderableType:
        return "page"

    def line(self) -> str:
        return "line"


def replaying(folder: Path, fast_forward: float | None = None) -> Replay:
    replay = Replay(
        AgentInteractions(rate=10), folder, 1_000, seconds=10, fast_forward=fast_forward
    )
    replay.start()
    return replay


@pytest.mark.parametrize("terminal", [True, False])
def test_oracle_the_last_look_sees_the_last_batch(tmp_path: Path, terminal: bool) -> None:
    query = FakeQuery()
    view = Counting(query)
    console = Console(file=io.StringIO(), force_terminal=terminal)
    follow([query], replaying(tmp_path), view, console)
    assert view.seen[-1]


def test_crash_a_query_that_fails_ends_the_demo(tmp_path: Path) -> None:
    # the replay alone would take days
    query = FakeQuery(DefinitionError("no such column"))
    replay = replaying(tmp_path, fast_forward=0.001)
    with pytest.raises(DefinitionError, match="no such column"):
        follow([query], replay, Counting(query), Console(file=io.StringIO()))
    assert not replay.is_alive()


def test_crash_a_replay_that_fails_ends_the_demo(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    query = FakeQuery()
    with pytest.raises(OSError, match="file"):
        follow([query], replaying(tmp_path / "file"), Counting(query), Console(file=io.StringIO()))


def test_a_temporary_folder_is_removed_and_a_kept_one_is_not(tmp_path: Path) -> None:
    with demo_folder(None) as folder:
        assert folder.is_dir()
    assert not folder.exists()
    with demo_folder(tmp_path / "kept") as folder:
        pass
    assert folder.is_dir()
    (folder / "mine").write_text("precious")
    with pytest.raises(DefinitionError, match="is not empty"), demo_folder(folder):
        pass


def test_the_page_of_a_demo_outlives_its_folder() -> None:
    reported = io.StringIO()
    with demo_folder(None, Console(file=reported, width=40)) as folder:
        history = QueryHistory(str(folder / "checkpoint"), {"name": "outliving"})
        history.start()
        history.end(None)
    page = shared_page(str(folder))
    assert not folder.exists()
    assert page.url in reported.getvalue()
    [query] = [each for each in page.library.queries() if each["name"] == "outliving"]
    assert query["state"] == "ended"
