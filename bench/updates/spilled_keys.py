"""An update queue with eight times the keys that fit into memory, against one that holds them all.

Idea: versions of random keys, half as many services as updates, as if all keys fit; what was served
is delivered before the next. Seven of eight updates are for a key on the local disk, and change it
there; keys are loaded when their turn is near.

Limits: the files are small enough for the operating system to cache them. A version of far fewer
updates than these reads and writes nearly all of the files, too, for fewer keys.
"""

from __future__ import annotations

import time
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.core.arrays import Ints
from icestream.state.arena import Arena
from icestream.state.budget import Budget
from icestream.state.queue.cells import KeyCells
from icestream.state.queue.eviction import KeyEviction
from icestream.state.queue.reader import QueueReader

SCHEMA = pa.schema([("price", pa.float64()), ("volume", pa.int64())])
#: bytes of the queue, and the number of keys as a multiple of those that fit
LITTLE = 24 << 20
TIMES = 8
#: bytes into which all of them fit
PLENTY = 512 << 20
BATCH = 16_384
#: updates of a version with more keys than fit
VERSIONS = (65_536, 131_072, 262_144)

Identity = npt.NDArray[np.uint64]


def identities(count: int) -> Identity:
    """Return well-mixed ids of keys."""
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(mixed ^ (mixed >> np.uint64(29)))


def rows_of(numbers: Ints) -> pa.RecordBatch:
    """Return values."""
    columns = [pa.array(numbers / 8), pa.array(numbers)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def spilled(
    schedule: str, batches: int, version: int = VERSIONS[0], little: int = LITTLE
) -> dict[str, Any]:
    """Return rates of both queues in processor time, and their ratio."""
    with TemporaryDirectory() as folder:
        fits = _eviction(folder, schedule, little).most
    keys = TIMES * fits
    few, all_of_them = (
        _operations(schedule, batches, budget, keys, version) for budget in (little, PLENTY)
    )
    return {
        "schedule": schedule,
        "updates of a version": version,
        "keys": keys,
        "keys that fit": fits,
        "enqueues_per_processor_second": few[0],
        "dequeues_per_processor_second": few[1],
        "enqueues_by_all_in_memory": few[0] / all_of_them[0],
        "dequeues_by_all_in_memory": few[1] / all_of_them[1],
    }


def idle_key_bytes(keys: int = 200_000) -> float:
    """Return the bytes of an arena for each key that was served, without the reader's profiles."""
    with TemporaryDirectory() as folder:
        account = Budget(PLENTY).account("queue")
        arena = Arena.create(folder, account)
        queue = KeyCells(SCHEMA, arrays=arena)
        reader = QueueReader(queue, schedule="inplace")
        fixed = account.held
        known = identities(keys)
        for first in range(0, keys, BATCH):
            some = known[first : first + BATCH]
            queue.enqueue(some, some, np.arange(len(some)), rows_of(np.arange(len(some))))
            served = reader.dequeue(len(some), keys)
            reader.delivered(served.id_high, served.id_low, at=keys)
        return (account.held - fixed) / keys


def _eviction(folder: str, schedule: str, budget: int) -> KeyEviction:
    account = Budget(budget).account("queue")
    arena = Arena.create(folder, account)
    cells = KeyCells(SCHEMA, arrays=arena)
    reader = QueueReader(cells, schedule=schedule, cost=1)
    return KeyEviction(cells, (reader,), arena, account)


def _operations(
    schedule: str, batches: int, budget: int, keys: int, version: int
) -> tuple[float, float]:
    """Return updates and services per second of the processor, once all keys are known."""
    dice = np.random.default_rng(17)
    known = identities(keys)
    spent, dequeued, clock = np.zeros(2), 0, 0
    with TemporaryDirectory() as folder:
        queue = _eviction(folder, schedule, budget)
        first = [known[begin : begin + version] for begin in range(0, keys, version)]
        drawn = [known[dice.integers(0, keys, version)] for _ in range(batches)]
        for number, id_high in enumerate((*first, *drawn)):
            arrived = clock + np.arange(len(id_high))
            clock += len(id_high)
            rows = rows_of(arrived)
            times = [time.process_time()]
            queue.enqueue(id_high, id_high, arrived, rows)
            times.append(time.process_time())
            served = queue.dequeue(0, len(id_high) // 2, clock)
            times.append(time.process_time())
            queue.delivered(clock)
            if number >= len(first):
                spent += np.diff(times)
                dequeued += len(served)
    return version * batches / float(spent[0]), dequeued / float(spent[1])
