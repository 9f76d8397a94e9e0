from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.research.window_blocks.file_runs import RUN_BYTES, Places, Vacancies

numbers = st.integers(0, 12)


@given(st.lists(st.tuples(st.booleans(), numbers, numbers), max_size=80))
def test_oracle_places_answer_as_a_dict(calls: list[tuple[bool, int, int]]) -> None:
    places, known = Places(), dict[int, int]()
    for put, block, place in calls:
        if put and block not in known:
            places.put(block, place)
            known[block] = place
        elif not put and block in known:
            assert places.pop(block) == known.pop(block)
        assert len(places) == len(known)
        assert [places.get(block) for block in range(13)] == [known.get(b) for b in range(13)]


@given(st.lists(st.one_of(st.none(), numbers), max_size=80))
def test_oracle_vacancies_answer_as_a_queue(calls: list[int | None]) -> None:
    free, known = Vacancies(), list[int]()
    for place in calls:
        if place is None:
            assert free.take() == (known.pop(0) if known else None)
        else:
            free.put(place)
            known.append(place)


def test_bounded_order_costs_one_run() -> None:
    places, free = Places(), Vacancies()
    for block in range(1_000):
        places.put(block + 5, block)
    for block in range(400):
        free.put(places.pop(block + 5))
    assert places.bytes == free.bytes == RUN_BYTES
    assert len(places) == 600
