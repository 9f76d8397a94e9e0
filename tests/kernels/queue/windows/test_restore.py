"""Tuples of window buffers as a table, and back."""

from __future__ import annotations

import random

import numpy as np

from icestream.kernels.queue.windows import zones as z
from icestream.kernels.queue.windows.restore import ORDINALS, READS, STARTS, lift_tuples, put_tuples
from icestream.kernels.queue.windows.transitions import enqueue_one, finish_one, read_one, serve_one
from icestream.state.queue.windows.queue import WindowArrays
from tests.oracles.kernels.queue.windows.restore import lift_tuples_reference, put_tuples_reference


def lifted(arrays: WindowArrays) -> tuple[list[int], list[list[int]], list[list[int]]]:
    counts = np.zeros(arrays.keys, dtype=np.int64)
    ordinals = np.zeros((arrays.keys, ORDINALS), dtype=np.int64)
    tuples = np.zeros((arrays.zones * 4, z.TUPLE), dtype=np.int64)
    found = lift_tuples(arrays.kernel, counts, ordinals, tuples)
    return counts.tolist(), ordinals.tolist(), tuples[:found].tolist()


def test_parity_lifted_tuples_are_put_back() -> None:
    for eager in (False, True):
        dice = random.Random(3)
        arrays = WindowArrays(9, 2, eager=eager, fifo=False, width=0, block_rows=4)
        ids = np.arange(3, dtype=np.uint64)
        cells = arrays.find_cells(ids, ids).tolist()
        arrays.reserve_zones(100)
        came: list[list[int]] = [[] for _ in cells]
        for time in range(1, 200):
            cell = dice.choice(cells)
            came[cell].append(time)
            enqueue_one(arrays.kernel, cell, time, time)
            for _ in range(dice.choice([0, 0, 1])):
                served, place = serve_one(arrays.kernel)
                if served != z.NONE:
                    if place != z.NONE:
                        read_one(arrays.kernel, served)
                    finish_one(arrays.kernel, served)
            counts, ordinals, tuples = lifted(arrays)
            for number, mine in enumerate(put_tuples_reference(counts, tuples)):
                times = [each[z.TIME] for each in mine]
                reads, starts = (
                    None if ordinals[number][column] == z.NONE else times[ordinals[number][column]]
                    for column in (READS, STARTS)
                )
                end = int(arrays.cells[number, z.END])
                assert times == lift_tuples_reference(came[number], reads, end, starts)
        fresh = WindowArrays(9, 2, eager=eager, fifo=False, width=0, block_rows=4)
        fresh.find_cells(ids, ids)
        fresh.cells[:3] = arrays.cells[:3]
        fresh.reserve_zones(100)
        table = np.array(tuples, dtype=np.int64).reshape(-1, z.TUPLE)
        put_tuples(fresh.kernel, np.array(counts), np.array(ordinals), table)
        assert lifted(fresh) == (counts, ordinals, tuples)
