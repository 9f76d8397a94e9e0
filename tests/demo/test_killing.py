from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from icestream.demo import killing
from icestream.demo.killing import KilledQuery


class StoppableQuery:
    """A query that is active until it is told to end."""

    def __init__(self) -> None:
        self.recentProgress: Sequence[Mapping[str, Any]] = []
        self.ended = threading.Event()
        self.failure: Exception | None = None

    @property
    def isActive(self) -> bool:  # noqa: N802
        return not self.ended.is_set()

    def processAllAvailable(self) -> None:  # noqa: N802
        self.ended.wait(10)
        if self.failure is not None:
            raise self.failure

    def end(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.ended.set()

    def stop(self) -> None:
        self.end()


def test_a_killed_query_is_waited_for_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    queries: list[StoppableQuery] = []

    def start() -> StoppableQuery:
        queries.append(StoppableQuery())
        return queries[-1]

    def lose_workers() -> int:
        queries[0].end(RuntimeError("a worker is gone"))
        return 2

    monkeypatch.setattr(killing, "kill_workers", lose_workers)
    query = KilledQuery(start)
    waiting = threading.Thread(target=query.processAllAvailable)
    waiting.start()
    query.kill()
    assert len(queries) == 2
    assert query.isActive
    assert query.story.startswith("Python workers killed: 2; the query ran again")
    assert waiting.is_alive()
    queries[1].end()
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_query_that_was_not_killed_raises_its_error() -> None:
    inner = StoppableQuery()
    inner.end(RuntimeError("no disk"))
    with pytest.raises(RuntimeError, match="no disk"):
        KilledQuery(lambda: inner).processAllAvailable()


def test_a_query_that_made_a_version_meanwhile_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = StoppableQuery()
    monkeypatch.setattr(killing, "kill_workers", lambda: 1)
    monkeypatch.setattr("time.sleep", lambda _: setattr(inner, "recentProgress", [{}]))
    query = KilledQuery(lambda: inner)
    query.kill()
    assert "Spark replaced them" in query.story
