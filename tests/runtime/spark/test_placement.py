from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from pyspark.sql import SparkSession

from icestream.runtime.spark.placement import CachedPartitions, slots_for, tidy_host
from icestream.state.arena import Arena, is_working
from icestream.state.budget import Budget


def test_a_host_keeps_the_arenas_of_its_shards_only(tmp_path: Path) -> None:
    arenas = str(tmp_path / "00000002-bbbbbbbbbbbb" / "arenas")
    account = Budget(1 << 20).account("groups")
    for name in ("shard-0.v4.a", "shard-1.v3.b", "shard-1.v4.c", "shard-2.v5.d"):
        Arena.create(arenas, account).release(name)
    Arena.create(arenas, account)
    Arena.create(str(tmp_path / "00000001-aaaaaaaaaaaa" / "arenas"), account).release(
        "shard-0.v4.a"
    )

    # version 5 is being made from 4, in which shard 1 was run on another host
    tidy_host(arenas, 5, ["shard-0.v4.a", "shard-1.v4.elsewhere", None])

    left = sorted(name for name in os.listdir(arenas) if not is_working(name))
    assert left == ["shard-0.v4.a", "shard-2.v5.d"]
    assert sum(map(is_working, os.listdir(arenas))) == 1
    assert os.listdir(tmp_path) == ["00000002-bbbbbbbbbbbb"]


def test_a_host_leaves_arenas_alone_that_come_while_it_is_tidied(tmp_path: Path) -> None:
    arenas = str(tmp_path / "00000002-bbbbbbbbbbbb" / "arenas")
    account = Budget(1 << 20).account("groups")
    Arena.create(arenas, account).release("shard-0.v3.a")
    listed = os.listdir
    come: list[Arena] = []

    def names(folder: str) -> list[str]:
        found = listed(folder)
        if folder == arenas:
            come.append(Arena.create(arenas, account))
        return found

    with mock.patch.object(os, "listdir", names):
        tidy_host(arenas, 5, [None])
    assert len(come) == 1
    assert listed(arenas) == [come[0].name]


class Counted(CachedPartitions):
    """Handles that are counted, not made."""

    def __init__(self, executors: int) -> None:
        driver: Any = SimpleNamespace(sparkContext=None)
        super().__init__(driver)
        self.executors = executors
        self.made = 0
        self.held: Sequence[str] = ()

    def _processes(self) -> frozenset[str]:
        return frozenset(map(str, range(1 + self.executors)))

    def _spread(self, tasks: int, *, alone: bool) -> tuple[Any, Sequence[str]]:
        assert alone == (self.executors == 1)
        self.made += 1
        return SimpleNamespace(unpersist=lambda: None), self.held or [""] * tasks

    def version(self, *places: str) -> int:
        """Run a version whose tasks are run at these places; return how often handles were made."""
        self.get(len(places))
        self.note(dict(enumerate(places)))
        return self.made


def test_bounded_handles_are_spread_until_all_executors_have_one() -> None:
    handles = Counted(2)
    assert [handles.version("a", "b") for _ in range(2)] == [1, 1]
    handles.executors = 1
    assert [handles.version("a", "a") for _ in range(2)] == [1, 1], "there is nowhere else"
    handles.executors = 2
    assert handles.version("a", "a") == 2, "the new one does not take tasks yet"
    assert handles.version("a", "c") == 3
    assert handles.version("a", "c") == 3
    handles.executors = 3
    assert handles.version("a", "c", "c") == 4
    assert [handles.version("a", "c", "c") for _ in range(4)] == [5, 6, 6, 6], "it is given up"


def test_bounded_handles_are_spread_until_executors_have_as_many() -> None:
    handles = Counted(2)
    assert [handles.version("a", "a", "a", "b") for _ in range(2)] == [1, 2], "b was slow"
    assert [handles.version("a", "a", "b", "b") for _ in range(2)] == [3, 3]
    handles.executors = 3
    assert handles.version("a", "b", "b", "c") == 4
    assert handles.version("a", "b", "b", "c") == 4, "four tasks on three executors"


def test_tasks_keep_their_executors_when_handles_are_spread() -> None:
    handles = Counted(2)
    handles.held = ["c", "a", "b", "a", "c", "b"]
    handles.version("a", "a", "a", "b", "b", "b")
    assert handles.get(6).partitions == (0, 1, 2, 3, 4, 5), "nobody was anywhere"
    # c has come
    handles.executors = 3
    assert handles.get(6).partitions == (1, 3, 0, 2, 5, 4)
    assert handles.get(6).partitions == (1, 3, 0, 2, 5, 4), "until they are spread again"
    assert slots_for(["a", None, "gone", "b"], ["b", "a", "a", "c"]) == (1, 2, 3, 0)


@pytest.mark.spark
def test_one_machine_is_one_host(spark: SparkSession) -> None:
    assert len(CachedPartitions(spark).hosts) == 1
