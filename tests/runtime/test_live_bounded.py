"""State and log follow what is live, whoever reads and whatever the mix of lifetimes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icestream.api.events import Events
from icestream.operators.process.declarations import ObjectState
from icestream.operators.process.per_group import StatefulProcessor
from icestream.plan.computation import Computation
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import Source
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings
from icestream.state.files import NewFile
from tests.fixtures import dataflow_plans
from tests.fixtures.checkpoints import KINDS
from tests.fixtures.checkpoints import events as events_of_kind
from tests.fixtures.plans import INSTANT, QuickFiles
from tests.suites.dataflow_conformance import open_dataflow

#: bytes that memory and log may have beyond three times what is live
CONSTANT = 3 << 20
#: the same where all of the arena and all other files of the checkpoint are counted
CHURN_CONSTANT = 4 << 20
EVENTS = pa.schema(
    [("key", pa.int64()), ("kind", pa.int64()), ("since", INSTANT), ("value", pa.int64())]
)
START, END, PROBE = 1, 2, 3
SECOND = 1_000_000


def flow_of(events: Events) -> Any:
    """Return a dataflow that emits changes."""
    return compiled(((events._node, "changes"),), {0: 0}, (Source("s", 0),), (EVENTS,), INSTANT)


def batch_of(flow: Any, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return a batch of rows (time, key, kind, since, value)."""
    time, key, kind, since, value = (np.concatenate(part) for part in zip(*rows, strict=True))
    order = np.argsort(time, kind="stable")
    columns = [
        pa.array(time[order]).cast(INSTANT),
        pa.array(np.zeros(len(order), dtype=np.int32)),
        pa.array(key[order]),
        pa.array(kind[order]),
        pa.array(since[order], mask=kind[order] != END).cast(INSTANT),
        pa.array(value[order]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=flow.batch_schema)


def held(flow: Any, folder: Path, batches: Iterator[pa.RecordBatch], budget: int) -> list[int]:
    """Run batches; return the bytes of rows in memory and of the checkpoint after each."""
    query = open_dataflow(flow, folder, budget=budget, shards=1)
    found = []
    for number, batch in enumerate(batches):
        (delivery,) = query.driver.batch(number, [[batch]])
        memory = delivery.progress["icestream"]["coldState"]["resident_bytes"]
        found.append(memory + files_of(folder / "checkpoint"))
    return found


def files_of(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(
        os.path.getsize(os.path.join(root, name))
        for root, _, names in os.walk(folder)
        for name in names
    )


def calls(flow: Any, versions: int, count: int, keys: int, *, probed: bool) -> Iterator[Any]:
    """Yield batches in which events start that end in the next one."""
    dice = np.random.default_rng(1)
    before: tuple[Any, Any] | None = None
    one = np.ones(count, dtype=np.int64)
    for version in range(versions):
        starts = version * SECOND + np.arange(count) * 200
        key = dice.integers(0, keys, count)
        rows = [(starts, key, START * one, 0 * one, one)]
        if before is not None:
            rows.append((starts + 100, before[1], END * one, before[0], one))
        if probed and version == versions - 1:
            rows.append((starts[-1:] + 150, key[:1], PROBE * one[:1], 0 * one[:1], one[:1]))
        before = starts, key
        yield batch_of(flow, rows)


def open_calls(how: str) -> Any:
    """Return a dataflow of open events, joined with or without those that ask."""
    events = Events(FromSource(EVENTS, source=0), {})

    def body(group: Any, asks: Any) -> Any:
        edges = group.edges(start="kind = 1", end="kind = 2", since="since").where("kind = 1")
        if how == "join":
            return edges.select("value").join(asks.select("value AS asked"))
        return edges.select("value").difference(asks)

    called, asks = events.where("kind <> 3"), events.where("kind = 3")
    return flow_of(called.groupApply("key", body, asks))


@pytest.mark.parametrize("how", ["join", "difference"])
def test_bounded_ended_events_leave_a_side_that_nobody_probes(tmp_path: Path, how: str) -> None:
    flow = open_calls(how)
    found = held(flow, tmp_path, calls(flow, 60, 800, 40, probed=False), 16 << 20)
    assert max(found) < 3 * 800 * 100 + CONSTANT


def test_bounded_one_key_of_short_calls_is_probed_late(tmp_path: Path) -> None:
    flow = open_calls("join")
    held(flow, tmp_path, calls(flow, 80, 400, 1, probed=True), 2 << 20)


@pytest.mark.parametrize("long", [None, 365 * 86_400 * SECOND])
def test_bounded_short_and_long_lifetimes_share_a_group(tmp_path: Path, long: int | None) -> None:
    count, keys, versions = 4000, 400, 60
    events = Events(FromSource(EVENTS, source=0), {})
    few = events.where("kind = 1 AND value = 0")
    kept = few.forever() if long is None else few.last(long)
    both = events.where("kind = 1").last(2 * SECOND).union(kept)
    flow = flow_of(
        both.groupApply(
            "key",
            lambda a, b: a.join(b.select("value AS asked"), where="value = asked"),
            events.where("kind = 3"),
        )
    )
    dice = np.random.default_rng(1)

    def batches() -> Iterator[pa.RecordBatch]:
        for version in range(versions):
            time = np.sort(dice.integers(version * SECOND, (version + 1) * SECOND, count))
            kind = np.where(dice.random(count) < 0.01, PROBE, START)
            key, value = dice.integers(0, keys, count), dice.integers(0, 1000, count)
            yield batch_of(flow, [(time, key, kind, 0 * key, value)])

    found = held(flow, tmp_path, batches(), 32 << 20)
    live = (2 * count + versions * count // 1000) * 8 * 8
    assert max(found) < 3 * live + CONSTANT


class LastSeen(StatefulProcessor):
    """Writes a map and an object and reads neither."""

    output = "key long"

    def __init__(self, kind: str) -> None:
        """Write to the map or to the object."""
        self.kind = kind

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self.last = handle.getMapState("last", "page long", "seen long")
        self.pages = handle.getObjectState("pages", PAGES)

    def handleInputRows(self, key: Any, rows: Any, timers: Any) -> None:  # noqa: N802
        """Put each row under one of ten keys."""
        for value in rows["value"]:
            if self.kind == "map":
                self.last.updateValue((value % 10,), (value,))
            else:
                self.pages.appendDelta(f"{value % 10}={value}".encode())


def applied(pages: dict[str, str], change: bytes) -> dict[str, str]:
    """Put one page."""
    page, _, seen = change.decode().partition("=")
    pages[page] = seen
    return pages


PAGES = ObjectState(
    lambda pages: json.dumps(pages).encode(),
    json.loads,
    delta=lambda _old, _new: None,
    apply=applied,
    initial=dict,
)


@pytest.mark.parametrize("kind", ["map", "object"])
def test_bounded_user_state_that_is_only_written(tmp_path: Path, kind: str) -> None:
    events = Events(FromSource(EVENTS, source=0), {})
    flow = flow_of(events.groupApply("key", lambda group: group.process(LastSeen(kind))))
    numbers = np.arange(2000)

    def batches() -> Iterator[pa.RecordBatch]:
        for version in range(100):
            time = version * 1000 + numbers
            yield batch_of(flow, [(time, numbers % 50, 0 * numbers, 0 * numbers, numbers // 50)])

    found = held(flow, tmp_path, batches(), 4 << 20)
    assert max(found) < 50 * 10 * 8 * 8 * 3 + CONSTANT


@dataclass(frozen=True)
class Churned:
    """A kind of state over keys that come and go, and how large what is live of it is."""

    plan: Callable[[], Computation]
    #: how long an event may change answers; None if only the newest of each key may, for ever
    lasts: int | None
    #: encoded bytes of the rows that an event becomes, each with the identity of its group
    event: int
    #: encoded bytes of what there is once for each group: running row, entry, timers
    group: int
    keys: int = 10_000


#: what an event and a group become: the words of their rows, and an identity of 16 bytes for each
CHURNED = {
    "windows": Churned(KINDS["windows"].plan, 20, 208, 752),
    "tumbling": Churned(KINDS["tumbling"].plan, 10, 48, 80),
    "events": Churned(KINDS["events"].plan, 20, 24 + 24, 40),
    "objects": Churned(KINDS["objects"].plan, 20, 40, 0),
    "rows": Churned(KINDS["rows"].plan, None, 3 * 64, 120),
    "ranges": Churned(KINDS["ranges"].plan, 9, 56, 104),
    "sessions": Churned(KINDS["sessions"].plan, 4, 72, 0),
    "groups": Churned(KINDS["groups"].plan, None, 72, 160),
    "pairs": Churned(KINDS["pairs"].plan, 6, 2 * 72, 448),
    "best": Churned(KINDS["best"].plan, 6, 80 + 72, 256),
    "difference": Churned(dataflow_plans.difference, 4, 72, 256),
    "nested": Churned(dataflow_plans.nested, 9, 2 * 80 + 80 + 72, 2 * 256),
    "processors": Churned(KINDS["processors"].plan, 3, 136, 448),
    "jobs": Churned(KINDS["jobs"].plan, 20, 4 * 72, 160),
    "fetching": Churned(dataflow_plans.join_within, 4, 72, 448),
    "joins": Churned(KINDS["joins"].plan, 60, 72, 40),
    "updates": Churned(KINDS["updates"].plan, None, 40, 64),
    "update joins": Churned(KINDS["update joins"].plan, 8, 48, 64),
    # groups of update windows are never forgotten
    "update windows": Churned(KINDS["update windows"].plan, 8, 48, 64, keys=12),
}


class CountingFiles(QuickFiles):
    """Counts the bytes that are written to segments."""

    written = 0

    def create(self, path: str) -> NewFile:
        """Create a file whose bytes are counted if it is a segment."""
        file = super().create(path)
        write = file.write

        def counted(data: Any) -> None:
            self.written += memoryview(data).nbytes
            write(data)

        if "/segments/" in path:
            file.write = counted  # type: ignore[method-assign]
        return file


@dataclass(frozen=True)
class Held:
    """Bytes after a version."""

    #: of the arena and other local files, of live segments, and of all else but results
    memory: int
    log: int
    rest: int
    #: of live rows
    live: int
    #: written to segments so far, and of the rows that came
    written: int
    came: int


def churn(kind: str, folder: Path, versions: int, count: int) -> Iterator[Held]:
    """Run a kind of state over keys that come and go; yield what it holds after each version."""
    churned, files = CHURNED[kind], CountingFiles()
    root = folder / "checkpoint"
    settings = Settings(str(root), str(folder / "local"), budget=48 << 20, shards=1)
    query = LocalQuery(churned.plan(), settings, files)
    times, keys, came, seen = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0, set[int]()
    for version in range(versions):
        splits = events_of_kind(query.plan, version, count, churned.keys)
        for (batch,) in splits:
            times.append(np.asarray(batch.column(0)).astype(np.int64))
            numbers = [each for each in batch.columns[2:] if each.type == pa.int64()]
            keys.append(np.asarray(numbers[0]))
            came += batch.num_rows * churned.event
        (delivery,) = query.driver.batch(version, splits)
        facts = delivery.progress["icestream"]
        if churned.lasts is None:
            seen.update(keys.pop().tolist())
            live = len(seen) * (churned.event + churned.group)
        else:
            times, keys = ([np.concatenate(each[-40:])] for each in (times, keys))
            # update streams have no watermark, but a lateness
            reached = max(facts["watermark"], int(times[0].max()) - 13 * SECOND)
            alive = times[0] + churned.lasts * SECOND > reached
            times, keys = ([each[0][alive]] for each in (times, keys))
            live = alive.sum() * churned.event + len(np.unique(keys[0])) * churned.group
        yield Held(
            files_of(folder / "local"),
            facts["logBytes"],
            files_of(root) - files_of(root / "segments") - files_of(root / "results"),
            int(live),
            files.written,
            came,
        )
    query.close()


def judged(found: Sequence[Held]) -> None:
    """Assert that memory and log follow what is live, and that little is written."""
    for held in found[len(found) // 4 :]:
        assert held.memory + held.log + held.rest < 3 * held.live + CHURN_CONSTANT, held
    last = found[-1]
    assert last.written < 4 * last.came + CHURN_CONSTANT, last


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", CHURNED)
def test_bounded_every_kind_of_state_follows_what_is_live(tmp_path: Path, kind: str) -> None:
    judged(list(churn(kind, tmp_path, 150, 400)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHURNED)
def test_bounded_every_kind_of_state_under_churn(tmp_path: Path, kind: str) -> None:
    found = list(churn(kind, tmp_path, 2000, 1000))
    judged(found)
    ends = max(each.memory + each.log for each in found[1000:])
    assert ends < 1.25 * max(each.memory + each.log for each in found[:1000]) + (1 << 20)
