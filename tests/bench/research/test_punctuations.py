from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.research.punctuations import Modified, Phase, Punctuations
from bench.research.routes import ALWAYS


def test_the_slowest_connection_counts() -> None:
    node = Punctuations([0, 1])
    node.on_timestamp(0, 10)
    assert node.timestamp == ALWAYS
    node.on_timestamp(1, 4)
    node.on_timestamp(1, 3)
    assert node.timestamp == 4


def test_phases_go_one_way() -> None:
    node = Punctuations([0])
    seen = [node.phase(10)]
    node.completed(10)
    seen.append(node.phase(10))
    node.on_timestamp(0, 10)
    seen.append(node.phase(10))
    node.completed(10)
    seen.append(node.phase(10))
    node.on_timestamp(0, 5)
    seen.append(node.phase(10))
    assert seen == [
        Phase.ACTIVE,
        Phase.ACTIVE,
        Phase.PROCESSING,
        Phase.COMPLETED,
        Phase.COMPLETED,
    ]
    assert node.phase(11) is Phase.ACTIVE


def test_counted_at_once_timestamps_would_part_the_nodes() -> None:
    # connection 0: 5, modification, 20; connection 1: 10, modification
    one, other = Punctuations([0, 1]), Punctuations([0, 1])
    for node in (one, other):
        node.on_timestamp(0, 5)
        node.on_timestamp(1, 10)
        node.on_modification(0)
    one.on_timestamp(0, 20)
    # counted at once, 20 would make it 10 here, and windows that end by 10 complete; there it is 5
    assert one.on_modification(1) == other.on_modification(1) == [Modified(0, 5)]
    assert one.timestamp == 10


@st.composite
def streams(draw: st.DrawFn) -> list[list[int | None]]:
    """Return what each connection brings: growing timestamps, and as many modifications each."""
    modifications = draw(st.integers(1, 3))
    made = []
    for _ in range(draw(st.integers(1, 3))):
        parts = [draw(st.lists(st.integers(0, 5), max_size=3)) for _ in range(modifications + 1)]
        at, stream = 0, list[int | None]()
        for number, part in enumerate(parts):
            for more in part:
                at += more
                stream.append(at)
            if number < modifications:
                stream.append(None)
        made.append(stream)
    return made


@given(streams(), st.lists(st.randoms(use_true_random=False), min_size=2, max_size=3))
def test_oracle_a_modification_finds_the_same_windows_active_at_every_node(
    connections: list[list[int | None]], chances: list[object]
) -> None:
    found = []
    ends = set()
    for chance in chances:
        node = Punctuations(range(len(connections)))
        order = [at for at, stream in enumerate(connections) for _ in stream]
        chance.shuffle(order)  # type: ignore[attr-defined]
        streams = [iter(stream) for stream in connections]
        modified: list[Modified] = []
        for connection in order:
            instant = next(streams[connection])
            if instant is None:
                modified += node.on_modification(connection)
            else:
                node.on_timestamp(connection, instant)
        found.append(modified)
        ends.add(node.timestamp)
    assert len(ends) == 1
    assert all(each == found[0] for each in found)
    assert [each.number for each in found[0]] == list(range(connections[0].count(None)))
    # as of the connections' own timestamps at the modification
    for each in found[0]:
        before = [before_modification(stream, each.number) for stream in connections]
        assert each.active == min(before)


def before_modification(stream: list[int | None], number: int) -> int:
    places = [at for at, each in enumerate(stream) if each is None]
    return max((each for each in stream[: places[number]] if each is not None), default=ALWAYS)
