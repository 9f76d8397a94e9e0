from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bench.research.migration import (
    Boundary,
    Copy,
    Done,
    HandOver,
    Instruction,
    Migrations,
    Move,
    MoveStage,
    Pause,
    Resume,
    SwitchRoutes,
    Way,
    ways,
)
from bench.research.punctuations import Punctuations
from bench.research.routes import ALWAYS, Routes
from icestream.plan.fuse.operator_graph import GraphOperator, Job, OperatorKind

NODES, SOURCES, GROUPS = 3, 2, 2
#: range and slide
WINDOWS = ((6, 2), (4, 4))
LONGEST = 6
END = 1 << 40

#: key group, start and end
Window = tuple[int, int, int]


def windows_of(group: int, time: int) -> list[Window]:
    return [
        (group, start, start + length)
        for length, slide in WINDOWS
        for start in range(time - time % slide, time - length, -slide)
    ]


@dataclass(frozen=True)
class Row:
    group: int
    value: int
    #: the windows it is for at the node it goes to
    windows: tuple[Window, ...]


@dataclass(frozen=True)
class Timestamp:
    at: int


@dataclass(frozen=True)
class Modification:
    pass


@dataclass(frozen=True)
class Part:
    window: Window
    values: tuple[int, ...]


@dataclass
class Node:
    seen: Punctuations = field(default_factory=lambda: Punctuations(range(SOURCES)))
    state: dict[Window, list[int]] = field(default_factory=lambda: defaultdict(list))
    aside: dict[int, list[Row]] = field(default_factory=dict)


class Model:
    """Sources, nodes and who consolidates, joined by queues; copies take their time."""

    def __init__(self) -> None:
        self.migrations = Migrations(Routes.of([0] * GROUPS), LONGEST)
        self.routes = self.migrations.routes
        self.sent = [0] * SOURCES
        self.reached = 0
        self.nodes = [Node() for _ in range(NODES)]
        self.queues: dict[tuple[str, int, int], deque[object]] = {
            **{("in", source, node): deque() for source in range(SOURCES) for node in range(NODES)},
            **{("out", node, 0): deque() for node in range(NODES)},
        }
        self.copies: dict[int, tuple[int, dict[Window, list[int]]]] = {}
        self.last = Punctuations(range(NODES))
        self.parts: dict[Window, dict[int, tuple[int, ...]]] = defaultdict(dict)
        self.closed = ALWAYS
        self.wanted: dict[Window, list[int]] = defaultdict(list)
        self.done: list[Done] = []
        self.put_aside = 0
        self.values = 0

    # what happens

    def row(self, source: int, group: int, time: int) -> None:
        self.values += 1
        self.reached = max(self.reached, time)
        by_node = defaultdict(list)
        for window in windows_of(group, time):
            self.wanted[window].append(self.values)
            by_node[self.routes.node(group, window[1])].append(window)
        for node, windows in by_node.items():
            self.queues["in", source, node].append(Row(group, self.values, tuple(windows)))

    def timestamp(self, source: int, at: int) -> None:
        self.sent[source] = max(self.sent[source], at)
        self.to_all(source, Timestamp(self.sent[source]))

    def to_all(self, source: int, what: object) -> None:
        for node in range(NODES):
            self.queues["in", source, node].append(what)

    def boundary(self) -> Boundary:
        return Boundary(min(self.sent), self.reached)

    def move(self, moves: Iterable[Move]) -> None:
        self.carry_out(self.migrations.modify(moves, self.boundary()))

    def deliver(self, queue: tuple[str, int, int]) -> None:
        what = self.queues[queue].popleft()
        side, origin, target = queue
        if side == "out":
            self.consolidate(origin, what)
            return
        node = self.nodes[target]
        if isinstance(what, Row):
            if what.group in node.aside:
                node.aside[what.group].append(what)
                self.put_aside += 1
            else:
                self.fold(node, what)
        elif isinstance(what, Timestamp):
            node.seen.on_timestamp(origin, what.at)
        else:
            for each in node.seen.on_modification(origin):
                self.complete(target, each.active)
                self.carry_out(self.migrations.on_modified(target, each.number))
        self.complete(target, node.seen.timestamp)

    def copied(self, group: int) -> None:
        target, state = self.copies.pop(group)
        self.take(target, state)
        self.carry_out(self.migrations.on_copied(group))

    # what nodes do

    def fold(self, node: Node, row: Row) -> None:
        for window in row.windows:
            node.state[window].append(row.value)

    def complete(self, number: int, until: int) -> None:
        """Emit windows that are full; with a key group aside, a node's time stands still."""
        node = self.nodes[number]
        if node.aside:
            return
        for window in sorted(window for window in node.state if window[2] <= until):
            self.queues["out", number, 0].append(Part(window, tuple(node.state.pop(window))))
        node.seen.completed(until)
        self.queues["out", number, 0].append(Timestamp(until))
        self.carry_out(self.migrations.on_completed(number, until))

    def take(self, target: int, state: dict[Window, list[int]]) -> None:
        for window, values in state.items():
            assert window not in self.nodes[target].state
            self.nodes[target].state[window] = values

    def give(self, group: int, source: int) -> dict[Window, list[int]]:
        state = self.nodes[source].state
        return {window: state.pop(window) for window in list(state) if window[0] == group}

    def carry_out(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, SwitchRoutes):
                self.routes = each.routes
                for source in range(SOURCES):
                    self.to_all(source, Modification())
            elif isinstance(each, Pause):
                self.nodes[each.node].aside[each.group] = []
            elif isinstance(each, Copy):
                self.copies[each.group] = (each.target, self.give(each.group, each.source))
            elif isinstance(each, HandOver):
                self.take(each.target, self.give(each.group, each.source))
            elif isinstance(each, Resume):
                for row in self.nodes[each.node].aside.pop(each.group):
                    self.fold(self.nodes[each.node], row)
                self.complete(each.node, self.nodes[each.node].seen.timestamp)
            else:
                self.done.append(each)

    def consolidate(self, node: int, what: object) -> None:
        if isinstance(what, Part):
            assert what.window[2] > self.closed, "a part came after its window was closed"
            assert node not in self.parts[what.window], "a node emitted a window twice"
            self.parts[what.window][node] = what.values
        elif isinstance(what, Timestamp):
            self.last.on_timestamp(node, what.at)
            self.closed = max(self.closed, self.last.timestamp)

    # the end

    def drain(self) -> None:
        while any(self.queues.values()) or self.copies:
            for queue in self.queues:
                while self.queues[queue]:
                    self.deliver(queue)
            for group in list(self.copies):
                self.copied(group)

    def finish(self) -> dict[Window, list[int]]:
        for source in range(SOURCES):
            self.timestamp(source, END)
        self.drain()
        return {
            window: sorted(value for values in parts.values() for value in values)
            for window, parts in self.parts.items()
        }


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.rigid = False

    @initialize(rigid=st.booleans())
    def begin(self, rigid: bool) -> None:
        self.rigid = rigid

    @rule(
        source=st.integers(0, SOURCES - 1),
        group=st.integers(0, GROUPS - 1),
        later=st.integers(0, 7),
    )
    def row(self, source: int, group: int, later: int) -> None:
        self.model.row(source, group, self.model.sent[source] + later)

    @rule(source=st.integers(0, SOURCES - 1), later=st.integers(0, 5))
    def timestamp(self, source: int, later: int) -> None:
        self.model.timestamp(source, self.model.sent[source] + later)

    @rule(data=st.data(), count=st.integers(1, 6))
    def deliver(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            full = [queue for queue, items in self.model.queues.items() if items]
            if full:
                self.model.deliver(data.draw(st.sampled_from(full)))

    @rule(
        groups=st.sets(st.integers(0, GROUPS - 1), min_size=1),
        there=st.integers(0, NODES - 1),
        way=st.sampled_from(Way),
    )
    def move(self, groups: set[int], there: int, way: Way) -> None:
        if not (self.rigid and way is Way.INSTANT):
            self.model.move(Move(group, there, way) for group in sorted(groups))

    @precondition(lambda self: self.model.copies)
    @rule(data=st.data())
    def copied(self, data: st.DataObject) -> None:
        self.model.copied(data.draw(st.sampled_from(sorted(self.model.copies))))

    @invariant()
    def only_moves_with_state_put_rows_aside(self) -> None:
        paused = {each.group for each in self.model.migrations.moving if each.stage in WITH_STATE}
        for node in self.model.nodes:
            assert set(node.aside) <= paused

    @invariant()
    def smooth_moves_are_done_when_their_windows_have_ended(self) -> None:
        for each in self.model.migrations.moving:
            if each.stage is MoveStage.DRAINING and not self.model.nodes[each.source].aside:
                assert self.model.nodes[each.source].seen.timestamp < each.until

    @invariant()
    def nodes_hold_what_is_theirs_or_what_they_are_about_to_lose(self) -> None:
        model = self.model
        for number, node in enumerate(model.nodes):
            leaving = {each.group for each in model.migrations.moving if each.source == number}
            for group, start, _ in node.state:
                assert group in leaving or model.routes.node(group, start) == number

    def teardown(self) -> None:
        found = self.model.finish()
        wanted = {window: sorted(values) for window, values in self.model.wanted.items()}
        assert found == wanted
        assert not self.model.migrations.moving
        if self.rigid:
            assert all(len(parts) == 1 for parts in self.model.parts.values())


WITH_STATE = (MoveStage.COMING, MoveStage.COPYING)


def test_oracle_windows_are_those_of_an_undisturbed_run() -> None:
    run_state_machine_as_test(
        Interleavings, settings=settings(max_examples=120, stateful_step_count=40)
    )


def scenario(way: Way, *, barrier: bool) -> Model:
    """Rows at 0, 1, ... 3; a move of key group 0 from node 0 to 1; rows at 4, 5, ... 9."""
    model = Model()
    for time in range(10):
        if time == 4:
            if barrier:
                model.drain()
            model.move([Move(0, 1, way)])
            if barrier:
                for queue in model.queues:
                    while model.queues[queue]:
                        model.deliver(queue)
        for source in range(SOURCES):
            model.timestamp(source, time)
            model.row(source, 0, time)
        for queue in sorted(model.queues):
            while model.queues[queue]:
                model.deliver(queue)
    return model


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize(
    ("way", "pauses"),
    [
        (Way.INSTANT, False),
        (Way.SMOOTH, False),
        (Way.HANDOVER, None),
        (Way.DISRUPTIVE, True),
    ],
)
def test_who_pauses(way: Way, pauses: bool | None, barrier: bool) -> None:
    model = scenario(way, barrier=barrier)
    # handing over waits for the boundary only
    assert (model.put_aside > 0) == (not barrier if pauses is None else pauses)
    found = model.finish()
    assert found == {window: sorted(values) for window, values in model.wanted.items()}
    several = [window for window, parts in model.parts.items() if len(parts) > 1]
    assert bool(several) == (way is Way.INSTANT)
    # only windows that had rows before the move and after it are in two parts
    assert all(start < 4 < end for _, start, end in several)


def test_a_longer_copy_is_a_longer_pause_and_a_handover_is_not() -> None:
    model = scenario(Way.DISRUPTIVE, barrier=True)
    assert model.put_aside == 12
    assert scenario(Way.HANDOVER, barrier=True).put_aside == 0


def test_smooth_is_done_within_the_longest_window() -> None:
    model = scenario(Way.SMOOTH, barrier=True)
    assert model.done == [Done(0, 0, 1, Way.SMOOTH)]
    model = Model()
    model.row(0, 0, 3)
    model.move([Move(0, 1, Way.SMOOTH)])
    for source in range(SOURCES):
        model.timestamp(source, 3 + LONGEST - 1)
    model.drain()
    assert not model.done
    for source in range(SOURCES):
        model.timestamp(source, 3 + LONGEST)
    model.drain()
    assert model.done == [Done(0, 0, 1, Way.SMOOTH)]


def test_a_move_is_done_at_once_where_all_windows_had_ended() -> None:
    for way in (Way.SMOOTH, Way.INSTANT):
        model = Model()
        model.row(0, 0, 3)
        for source in range(SOURCES):
            model.timestamp(source, 3 + LONGEST)
        model.drain()
        model.move([Move(0, 1, way)])
        assert model.done == [Done(0, 0, 1, way)]


def test_moves_that_must_wait_are_refused_with_a_reason() -> None:
    model = Model()
    model.row(0, 0, 3)
    asked = Move(0, 1, Way.DISRUPTIVE)
    assert model.migrations.refused(asked, model.boundary()) is None
    assert "already" in str(model.migrations.refused(Move(0, 0, Way.INSTANT), model.boundary()))
    model.move([asked])
    assert "on its way" in str(model.migrations.refused(Move(0, 2, Way.INSTANT), model.boundary()))
    model.drain()
    model.move([Move(0, 2, Way.SMOOTH)])
    assert "several" in str(model.migrations.refused(Move(0, 0, Way.HANDOVER), model.boundary()))
    model = Model()
    model.row(0, 0, 3)
    model.move([Move(0, 1, Way.INSTANT)])
    back = Move(0, 0, Way.DISRUPTIVE)
    assert "drained" in str(model.migrations.refused(back, model.boundary()))
    assert model.migrations.modify([back], model.boundary()) == []


def test_ways_follow_from_the_kinds_of_operators() -> None:
    def one(kind: OperatorKind, longest: int = 0) -> GraphOperator:
        return GraphOperator(kind, kind, ("a",), ("a",), frozenset("a"), frozenset("a"), longest)

    job = Job(
        (one(OperatorKind.MAP), one(OperatorKind.COMPUTE, 60), one(OperatorKind.CONSOLIDATE)), ()
    )
    assert Way.INSTANT in ways(job, [0], consolidated_next=False)
    assert ways(job, [0, 1], consolidated_next=True) == frozenset(Way)
    assert Way.INSTANT not in ways(job, [0, 1], consolidated_next=False)
    assert Way.INSTANT in ways(job, [0, 2], consolidated_next=False)
    assert ways(job, [0, 1, 2], consolidated_next=True) == frozenset(Way) - {Way.INSTANT}


def test_windows_that_have_not_ended_stay_where_two_smooth_moves_left_them() -> None:
    model = Model()
    model.row(0, 0, 3)
    model.move([Move(0, 1, Way.SMOOTH)])
    for source in range(SOURCES):
        model.timestamp(source, 6)
    model.row(0, 0, 8)
    model.move([Move(0, 2, Way.SMOOTH)])
    # [2, 8) had a row before the first move, [4, 10) before the second, [10, 16) has none
    assert [model.routes.node(0, start) for start in (2, 4, 10)] == [0, 1, 2]
