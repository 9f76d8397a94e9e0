from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.research.routes import ALWAYS, Entry, Routes

CHANGES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 4)), max_size=8)


def test_a_change_makes_a_new_version() -> None:
    first = Routes.of([0, 1])
    second = first.changed([(0, Entry(10, 2))])
    assert (first.version, second.version) == (0, 1)
    assert first.node(0, 99) == 0
    assert [second.node(0, start) for start in (ALWAYS, 9, 10, 11)] == [0, 0, 2, 2]
    assert second.node(1, 99) == 1
    assert second.owners(0, 5) == (0, 2)
    assert second.owners(0, 10) == (2,)
    assert second.newest(0) == 2
    # what comes later replaces what was to come after it
    assert second.changed([(0, Entry(5, 3))]).entries[0] == (Entry(ALWAYS, 0), Entry(5, 3))


@given(CHANGES, st.integers(0, 30))
def test_oracle_forgetting_changes_no_route_that_is_needed(
    changes: list[tuple[int, int, int]], before: int
) -> None:
    routes = Routes.of([0, 1])
    plain = [dict.fromkeys(range(40), node) for node in (0, 1)]
    for group, first, node in changes:
        routes = routes.changed([(group, Entry(first, node))])
        plain[group].update(dict.fromkeys(range(first, 40), node))
    short = routes.forgotten(before)
    for group in (0, 1):
        assert all(routes.node(group, start) == plain[group][start] for start in range(40))
        assert all(short.node(group, start) == plain[group][start] for start in range(before, 40))
        assert all(entry.first > before for entry in short.entries[group][1:])
        assert set(short.owners(group, before)) == {plain[group][at] for at in range(before, 40)}
