"""Queues of windows that come back from what they held."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icestream.kernels.queue.windows import zones as z
from icestream.state.queue.windows.queue import WindowQueue, WindowTuples
from icestream.state.queue.windows.snapshot import bring_back, content_of
from icestream.state.queue.windows.spec import Semantics, UpdateWindows

SCHEMA = pa.schema([("v", pa.int64())])


def queue_of(semantics: Semantics, schedule: Any = "inplace") -> WindowQueue:
    windows = UpdateWindows(7, 2, semantics)
    return WindowQueue(SCHEMA, windows, schedule=schedule, block_rows=3)


def fed(queue: WindowQueue, dice: random.Random, begin: int) -> None:
    times = np.array(sorted(dice.sample(range(begin, begin + 30), 12)), dtype=np.int64)
    keys = np.array([int(5 * dice.random() ** 2) for _ in times], dtype=np.uint64)
    queue.enqueue(keys, keys, times, times, pa.RecordBatch.from_arrays([times], schema=SCHEMA))


def reported(read: WindowTuples) -> list[Any]:
    columns = [read.cells, read.times, read.arrived, read.marks, read.is_tuple]
    return [*(each.tolist() for each in columns), read.rows.to_pylist()]


@pytest.mark.parametrize("semantics", ["lazy", "eager"])
@pytest.mark.parametrize("schedule", ["inplace", "fifo"])
def test_oracle_a_queue_goes_on_from_its_content(semantics: Semantics, schedule: Any) -> None:
    dice = random.Random(1)
    queue = queue_of(semantics, schedule)
    for batch in range(60):
        back = queue_of(semantics, schedule)
        bring_back(back.arrays, content_of(queue.arrays))
        count, seed = dice.randrange(1, 20), dice.random()
        found = []
        for each in (queue, back):
            fed(each, random.Random(seed), 1 + 30 * batch)
            found.append(reported(each.dequeue(count)))
        assert found[0] == found[1]
        ours, theirs = queue.facts, back.facts
        assert {**ours, "zones": 0, "pages": 0} == {**theirs, "zones": 0, "pages": 0}
        assert theirs["zones"] <= ours["zones"] + len(queue.table)
        queue = dice.choice([queue, back])
    assert queue.facts["done"] > 50


@pytest.mark.parametrize("semantics", ["lazy", "eager"])
def test_content_that_makes_no_sense_is_refused(semantics: Semantics) -> None:
    dice = random.Random(2)
    queue = queue_of(semantics)
    for batch in range(20):
        fed(queue, dice, 1 + 30 * batch)
        queue.dequeue(8)
    refused = 0
    for _ in range(400):
        content = {name: array.copy() for name, array in content_of(queue.arrays).items()}
        name = dice.choice(["cells", "cells", "counts", "held", "ordinals", "tuples"])
        flat = content[name].reshape(-1)
        flat[dice.randrange(len(flat))] += dice.choice([-1, 1, 7, -(1 << 40), 1 << 40])
        back = queue_of(semantics)
        try:
            bring_back(back.arrays, content)
        except ValueError:
            refused += 1
            continue
        for key in range(len(back.table)):
            assert back.table[key, z.STATES] < 16
        assert len(back.dequeue(10_000)) < 10_000
    assert 100 < refused < 400
    with pytest.raises(ValueError, match="cells"):
        bring_back(queue_of(semantics).arrays, {"cells": np.zeros((2, 2))})
