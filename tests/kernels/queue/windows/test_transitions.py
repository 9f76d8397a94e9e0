"""Windows as updates beside their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.kernels.queue import pages
from icestream.kernels.queue.windows import lists, tuple_batches
from icestream.kernels.queue.windows import transitions as k
from icestream.kernels.queue.windows import zones as z
from icestream.state.queue.windows.queue import WindowArrays
from tests.oracles.kernels.queue.windows.tuple_batches import find_cells_reference
from tests.oracles.kernels.window_queue import PlainWindows

SPECS = st.tuples(st.integers(1, 7), st.integers(1, 7)).map(lambda pair: (max(pair), min(pair)))
EVENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=60)


def windows_of(
    size: int, slide: int, *, eager: bool, fifo: bool = False, keys: int = 4, block_rows: int = 3
) -> z.WindowQueueArrays:
    arrays = WindowArrays(size, slide, eager=eager, fifo=fifo, width=0, block_rows=block_rows)
    arrays.reserve_cells(keys)
    for cell in range(keys):
        tuple_batches.blank_cell(arrays.cells, cell)
    arrays.reserve_zones(keys * (2 * size + slide))
    return arrays.kernel


def names(states: int) -> set[str]:
    bits = {"WAIT": lists.WAIT, "READY": lists.READY, "IDLE": lists.IDLE}
    return {name for name, bit in bits.items() if states & bit}


def zones(windows: z.WindowQueueArrays, cell: int) -> list[int]:
    found, zone = [], int(windows.cells[cell, z.FRONT])
    while zone != z.NONE:
        found.append(zone)
        zone = int(windows.pool.words[zone + z.NEXT])
    return found


def times_of(windows: z.WindowQueueArrays, zone: int) -> set[int]:
    words, width = windows.pool.words, int(windows.facts[z.WIDTH])
    first, last = int(words[zone + z.DEQ]), int(words[zone + z.ENQ])
    return {int(words[zone + z.ZONE + at * width]) for at in range(first, last)}


#: None serves a tuple; otherwise a tuple of a key, so much ahead of its last, or only its time
STEP = st.one_of(
    st.none(),
    st.tuples(st.integers(0, 2), st.integers(-1, 3), st.just(True)),
    st.tuples(st.integers(0, 2), st.integers(0, 6), st.booleans()),
)


@given(
    spec=SPECS,
    eager=st.booleans(),
    fifo=st.booleans(),
    block_rows=st.integers(1, 3),
    steps=st.one_of(st.lists(STEP, max_size=20), st.lists(STEP, min_size=50, max_size=120)),
)
@settings(max_examples=150)
def test_parity_window_queue_beside_its_definition(
    spec: tuple[int, int],
    eager: bool,
    fifo: bool,
    block_rows: int,
    steps: list[tuple[int, int, bool] | None],
) -> None:
    windows = windows_of(*spec, eager=eager, fifo=fifo, block_rows=block_rows)
    plain = PlainWindows(*spec, eager, fifo)
    clocks = [0, 0, 0, 0]
    said = {"late": k.TOO_LATE, "taken": k.TAKEN, "update": k.UPDATE}
    for number, step in enumerate(steps):
        if step is None:
            served = plain.serve()
            cell, place = k.serve_one(windows)
            assert (cell, place) == (z.NONE, z.NONE) if served is None else cell == served[0]
            if served is None:
                continue
            time = 0 if place == z.NONE else int(windows.pool.words[place + z.TIME])
            assert time == served[1]
            if time:
                plain.read(cell)
                k.read_one(windows, cell)
            assert k.finish_one(windows, cell) == plain.finish(cell)
        else:
            key, ahead, is_tuple = step
            time = max(1, clocks[key] + ahead)
            if is_tuple:
                clocks[key] = max(clocks[key], time)
                is_tie = time == windows.cells[key, z.LAST]
                wanted = said[plain.enqueue(key, time, number)]
                found = k.enqueue_one(windows, key, time, number)
                assert found == wanted or (is_tie and (wanted, found) == (k.TOO_LATE, k.REPLACED))
            else:
                reported = plain.advance(key, time, number)
                assert k.advance_one(windows, key, time, number) == reported
        for name, known in plain.keys.items():
            row = windows.cells[name]
            assert names(int(row[z.STATES])) == known.states
            assert row[z.COMMITTED] == known.committed
            assert "WAIT" not in known.states or row[z.SINCE] == known.since
            kept, live = plain.live(name)
            assert (row[z.KEPT], row[z.KEPT] + row[z.BEFORE]) == (len(kept), len(live))
            held = [times_of(windows, zone) for zone in zones(windows, name)]
            assert live <= set().union(*held)
            assert all(live & times for times in held)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(("size", "slide"), [(1, 1), (5, 1), (5, 2), (5, 5), (8, 3)])
def test_bounded_buffers_hold_size_plus_slide_minus_one(size: int, slide: int, eager: bool) -> None:
    windows = windows_of(size, slide, eager=eager, keys=1)
    for time in range(1, 40 * size):
        k.enqueue_one(windows, 0, time, time)
        if time % (3 * size + 1) == 0:
            cell, place = k.serve_one(windows)
            if place != z.NONE:
                k.read_one(windows, cell)
                k.finish_one(windows, cell)
    assert windows.facts[z.MOST_KEPT] <= size + slide - 1
    if eager:
        assert windows.facts[z.MOST_LIVE] == size + slide - 1
    else:
        assert windows.facts[z.MOST_KEPT] == size + slide - 1
        assert windows.facts[z.MOST_LIVE] <= 2 * size + slide - 2


def test_keys_that_were_held_come_back_to_their_places() -> None:
    windows = windows_of(2, 2, eager=True, keys=3)

    def process() -> tuple[int, bool]:
        cell, place = k.serve_one(windows)
        if place != z.NONE:
            k.read_one(windows, cell)
        return cell, k.finish_one(windows, cell)

    for key in (0, 1):
        k.enqueue_one(windows, key, 2, key)
        assert process() == (key, False)
    # both are idle; both wait for their next window, 1 before 0, and come back as 0, then 1
    k.enqueue_one(windows, 1, 4, 3)
    k.enqueue_one(windows, 0, 4, 4)
    assert lists.next_waiting(windows) == z.NONE, "their windows are not done"
    for key in (0, 1):
        windows.cells[key, z.COMMITTED] = z.NONE
        lists.stop_holding(windows, key)
    assert [lists.next_waiting(windows) for _ in range(3)] == [1, 0, z.NONE]


def test_a_key_goes_through_the_states_of_its_transition_graph() -> None:
    windows = windows_of(3, 3, eager=True, keys=2)

    def states(key: int) -> set[str]:
        return names(int(windows.cells[key, z.STATES]))

    def process() -> bool:
        cell, place = k.serve_one(windows)
        if place != z.NONE:
            k.read_one(windows, cell)
        return k.finish_one(windows, cell)

    assert k.enqueue_one(windows, 0, 3, 1) == k.UPDATE
    assert states(0) == {"WAIT"}
    assert k.serve_one(windows)[0] == 0
    assert states(0) == {"READY"}
    k.enqueue_one(windows, 0, 4, 2)
    assert not process()
    assert states(0) == {"READY"}, "the window has another tuple: isAvail"
    assert not process()
    assert states(0) == {"IDLE"}, "it has no more, and is not full"
    k.enqueue_one(windows, 1, 3, 3)
    assert k.serve_one(windows)[0] == 1, "an idle key makes room for others"
    k.enqueue_one(windows, 0, 6, 4)
    assert states(0) == {"WAIT", "READY"}, "6 ends window 3-5 (doPromote) and starts 6-8 (isUpdate)"
    assert not process()
    assert states(1) == {"IDLE"}
    assert process(), "key 0 has nothing left to read of 3-5: DONE"
    assert states(0) == {"WAIT"}
    assert k.serve_one(windows)[0] == 0
    assert windows.cells[0, z.COMMITTED] == 2


@given(spec=SPECS, eager=st.booleans(), events=EVENTS)
def test_blocks_in_use_are_in_one_buffer(
    spec: tuple[int, int], eager: bool, events: list[tuple[int, int]]
) -> None:
    windows = windows_of(*spec, eager=eager)
    for time, (key, turns) in enumerate(events, start=1):
        k.enqueue_one(windows, key, time, time)
        if turns > 4:
            cell, place = k.serve_one(windows)
            if place != z.NONE:
                k.read_one(windows, cell)
                k.finish_one(windows, cell)
        linked = [zone for cell in range(4) for zone in zones(windows, cell)]
        assert len(set(linked)) == len(linked) == windows.space[pages.USED]
        words, shift = windows.pool.words, int(windows.pool.facts[pages.SHIFT])
        for zone in linked:
            page, block = int(words[zone + z.PAGE]), int(words[zone + z.BLOCK])
            assert zone == (page << shift) + block * int(windows.space[pages.UNIT])
            assert 0 <= words[zone + z.DEQ] <= words[zone + z.ENQ] <= windows.facts[z.ROWS]


@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=40))
def test_parity_cells_of_keys(pairs: list[tuple[int, int]]) -> None:
    id_high = np.array([pair[0] for pair in pairs], dtype=np.uint64)
    id_low = np.array([pair[1] << 40 for pair in pairs], dtype=np.uint64)
    cells = np.zeros((32, z.CELL), dtype=np.int64)
    found = np.empty(len(pairs), dtype=np.int64)
    index = np.zeros(64, dtype=np.int32)
    done, used = tuple_batches.find_cells(cells, index, 0, id_high, id_low, 0, found)
    assert found.tolist() == find_cells_reference(id_high, id_low)
    assert (done, used) == (len(pairs), len(set(pairs)))
