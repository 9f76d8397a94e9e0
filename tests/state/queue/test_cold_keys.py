"""Rows of keys outside memory, beside a dictionary."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from icestream.core.arrays import Ints
from icestream.core.times import INFINITY
from icestream.kernels.queue import queue as k
from icestream.kernels.queue.order import FLYING, LACKS, READER_WORDS, SINCE, TURN
from icestream.kernels.queue.staleness import NONE
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.queue import cold_values
from icestream.state.queue.cold_keys import ColdKeys
from icestream.state.queue.order import KeyOrder


def cold_in(arena: Arena) -> ColdKeys:
    return ColdKeys(arena, (KeyOrder(arena, schedule="inplace"),), 4096, "queue")


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena.create(str(tmp_path), Budget(1 << 24).account("arena"))


def row(key: int, *, arrived: int = 0, turn: int | None = None, flying: int = NONE) -> Ints:
    """Return a key that waits at a turn, with its number as value, or does not wait."""
    words = np.zeros(k.CELL_WORDS + READER_WORDS, dtype=np.int64)
    words[[k.ID_HIGH, k.ID_LOW, k.ARRIVED, k.COUNT, k.SIZE]] = key, key * 7, arrived, 1, 1 + key % 3
    mine = words[k.CELL_WORDS :]
    mine[[SINCE, LACKS, FLYING, TURN]] = NONE, NONE, flying, NONE
    if turn is not None:
        words[k.WAITED_FOR] = 1
        mine[[TURN, SINCE, LACKS]] = turn, arrived, arrived
    return words


def put(cold: ColdKeys, rows: list[Ints]) -> None:
    values = [np.full(each[k.SIZE], each[k.ID_HIGH]) for each in rows if each[k.WAITED_FOR]]
    offsets = np.cumsum([0, *map(len, values)])
    words = np.concatenate([np.empty(0, dtype=np.int64), *values])
    cold.put(np.array(rows).reshape(-1, cold.width), words, offsets)


def ids(keys: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(keys, dtype=np.uint64), np.array(keys, dtype=np.uint64) * np.uint64(7)


def test_oracle_cold_keys_are_a_dictionary(arena: Arena) -> None:
    cold, plain = cold_in(arena), dict[int, Ints]()
    dice = np.random.default_rng(3)
    for _ in range(60):
        keys = [int(key) for key in dice.permutation(300)[: dice.integers(1, 60)]]
        found, rows = cold.look(*ids(keys))
        assert found.tolist() == [key in plain for key in keys]
        assert rows[:, k.ID_HIGH].tolist() == [key for key in keys if key in plain]
        rows, words, offsets = cold.pop(*ids(keys))
        waits = rows[rows[:, k.WAITED_FOR] != 0]
        for key, begin, end in zip(waits[:, k.ID_HIGH], offsets[:-1], offsets[1:], strict=True):
            assert words[begin:end].tolist() == [key] * (1 + key % 3)
        for got in rows:
            mine = plain.pop(int(got[k.ID_HIGH]))
            idle = [k.SIZE] if not mine[k.WAITED_FOR] else []
            ours, theirs = (np.delete(each, [k.ADDRESS, *idle]) for each in (mine, got))
            assert ours.tolist() == theirs.tolist()
        back = [
            row(key, arrived=key, turn=key if dice.random() < 0.5 else None)
            for key in keys
            if dice.random() < 0.8
        ]
        put(cold, back)
        plain.update({int(each[k.ID_HIGH]): each for each in back})
        cold.clean()
        assert len(cold) == len(plain)
        assert cold.waiting == sum(each[k.WAITED_FOR] != 0 for each in plain.values())


def test_oracle_turns_come_in_order(arena: Arena) -> None:
    cold = cold_in(arena)
    dice = np.random.default_rng(4)
    turns: dict[int, int] = {}
    for step in range(40):
        new = [int(key) for key in dice.permutation(2000)[:50] if int(key) not in turns]
        mine = {key: int(dice.integers(-1000, 1000)) * 2000 + key for key in new}
        put(cold, [row(key, arrived=turn, turn=turn) for key, turn in mine.items()])
        turns.update(mine)
        # some come back because they are named, and leave again with another turn
        named = list(turns)[: 5 + step % 3]
        cold.pop(*ids(named))
        for key in named:
            turns[key] += 2000 * int(dice.integers(-5, 50))
        put(cold, [row(key, arrived=turns[key], turn=turns[key]) for key in named])
        assert cold.next_turn(0) <= min(turns.values())
        for key in popped(cold, 30, turns):
            del turns[key]
        cold.clean()
    assert cold.waits(0) == len(turns)
    while turns:
        for key in popped(cold, 100, turns):
            del turns[key]
    assert not popped(cold, 100, turns)
    assert cold.next_turn(0) == INFINITY


def popped(cold: ColdKeys, count: int, turns: dict[int, int]) -> list[int]:
    """Return keys that are next, in order; those left come after them, and after the next turn."""
    keys = [
        int(key) for rows, _, _ in cold.pop_next(0, count, 7) for key in rows[:, k.ID_HIGH].tolist()
    ]
    assert keys == sorted(turns, key=lambda key: turns[key])[: len(keys)]
    assert len(keys) <= count
    left = [turn for key, turn in turns.items() if key not in keys]
    assert cold.next_turn(0) <= min(left, default=INFINITY)
    return keys


def test_delivered_keys_are_idle_and_may_be_forgotten(arena: Arena) -> None:
    cold = cold_in(arena)
    put(cold, [row(key, arrived=key, flying=key) for key in range(50)])
    put(cold, [row(key, arrived=key, turn=key, flying=1) for key in range(50, 80)])
    cold.forget(1000)
    assert len(cold) == 80
    cold.delivered(2000)
    assert sum(map(len, cold.idle_rows())) == 50
    assert cold.waiting == 30
    cold.forget(20)
    assert sorted(int(each) for rows in cold.idle_rows() for each in rows[:, k.ID_HIGH]) == [
        *range(20, 50)
    ]
    cold.forget(1000)
    assert len(cold) == cold.waiting == 30


def test_bounded_dead_values_are_cleaned_away(arena: Arena) -> None:
    with mock.patch.object(cold_values, "_LITTLE", 64):
        cold = cold_in(arena)
        put(cold, [row(key, turn=key) for key in range(1000)])
        for _ in range(20):
            rows, words, offsets = cold.pop(*ids(list(range(500))))
            cold.put(rows, words, offsets)
            cold.clean()
            assert cold.values.words <= 2 * 2000 + 64
        _, words, _ = cold.pop(*ids(list(range(1000))))
    assert sorted(set(words.tolist())) == list(range(1000))
