"""Jobs give what plain Python gives over the whole stream, fused or not, whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import DefinitionError, InputError
from icestream.operators.jobs.batches import TupleBatch
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.fuse import running_fusion
from icestream.plan.fuse.running_fusion import RunningFusion, Together
from icestream.plan.jobs.building import JobStream, JobWindow
from icestream.plan.jobs.planning import operators_of, planned_job
from icestream.runtime.exchange.change_sender import Routing
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.task import OpenShard, ShardReport, ShardTask
from icestream.testing.moving_shards import rescale, separate_disks
from icestream.testing.sources import SECOND, Item, StreamShape, batches_of, drive
from tests.fixtures.job_plans import job_dataflow, tuples_of
from tests.oracles.jobs import Spanning, counted, job_results, tuples_in
from tests.suites.dataflow_conformance import (
    DataflowConformance,
    open_dataflow,
    small_sizes,
    stream_of,
)

LOANS = pa.schema([("area", pa.int64()), ("user", pa.int64()), ("amount", pa.float64())])
SLACK = 10 * SECOND


def rated(row: dict[str, Any]) -> dict[str, Any] | None:
    return {"rate": (row["amount"] or 0.0) * 0.5}


def rated_many(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"rate": np.nan_to_num(batch.column("amount").to_numpy(zero_copy_only=False)) * 0.5}


def add(state: dict[str, Any], row: dict[str, Any]) -> None:
    state["n"] += 1
    state["total"] += row["rate"]
    state["high"] = max(state["high"], row["rate"])


def add_many(state: dict[str, Any], tuples: TupleBatch) -> list[Any]:
    return [
        state["n"] + tuples.sizes,
        state["total"] + tuples.reduce(np.add, "rate"),
        np.maximum(state["high"], tuples.reduce(np.maximum, "rate")),
    ]


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "n": sum(each["n"] for each in parts),
        "total": sum(each["total"] for each in parts),
        "high": max(each["high"] for each in parts),
    }


def merged_many(parts: TupleBatch) -> list[Any]:
    return [
        parts.reduce(np.add, "n"),
        parts.reduce(np.add, "total"),
        parts.reduce(np.maximum, "high"),
    ]


def number(state: dict[str, Any], row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    n = state["n"] + 1
    return {"n": n}, {"seen": n > 0, "user": row["user"], "rate": row["rate"]}


def number_many(state: dict[str, Any], tuples: TupleBatch) -> tuple[list[Any], dict[str, Any]]:
    seen = np.ones(tuples.rows.num_rows, dtype=np.bool_)
    columns = {name: tuples.rows.column(name) for name in ("user", "rate")}
    return [state["n"] + tuples.sizes], {"seen": seen, **columns}


def ratio(row: dict[str, Any]) -> dict[str, Any]:
    return {"mean": row["total"] / row["n"]}


def halved(row: dict[str, Any]) -> dict[str, Any]:
    return {"half": row["total"] / 2}


START = {"n": 0, "total": 0.0, "high": 0.0}


class Forms:
    """The same functions for rows or for many tuples."""

    def __init__(self, *, many: bool) -> None:
        self.many = many

    def loans(self) -> JobStream:
        return tuples_of(LOANS).map(
            rated_many if self.many else rated, vectorised=self.many, name="rated"
        )

    def compute(self, stream: JobStream, name: str, **options: Any) -> JobStream:
        function = add_many if self.many else add
        return stream.compute(function, initial=START, vectorised=self.many, name=name, **options)

    def consolidate(self, stream: JobStream, name: str, **options: Any) -> JobStream:
        function = merged_many if self.many else merged
        return stream.consolidate(function, vectorised=self.many, name=name, **options)

    # -- the four configurations -----------------------------------------------------------

    def partials(self, sharing: str = "partials") -> JobStream:
        """Compute, then consolidate: windows share partials."""
        states = self.compute(self.loans(), "add", key="area")
        windows = ["4 seconds", "8 seconds", "12 seconds", JobWindow("16 seconds", "8 seconds")]
        return self.consolidate(states, "merged", windows=windows, sharing=sharing)

    def computed(self) -> JobStream:
        """Compute, then map, then compute over its windows."""
        states = self.compute(self.loans(), "add", key=("area", "user"), window="4 seconds")
        rates = states.map(halved, keeps=["area", "user"]).map(
            lambda row: {"rate": row["half"]}, keeps=["area"], name="renamed"
        )
        return self.compute(
            rates, "add again", key="area", window=JobWindow("10 seconds", "5 seconds")
        )

    def consolidated(self) -> JobStream:
        """Consolidate, then consolidate for all areas together, then map."""
        one = self.partials()
        everyone = self.consolidate(one, "everyone", windows=["8 seconds", "24 seconds"], key=())
        return everyone.map(ratio)

    def eager(self) -> JobStream:
        """Compute answers each tuple, the next one takes them in."""
        numbered = self.loans().compute(
            number_many if self.many else number,
            key="area",
            initial={"n": 0},
            emit="tuple",
            output="seen boolean, user long, rate double",
            window="5 seconds",
            vectorised=self.many,
            name="numbered",
        )
        return self.compute(numbered, "add", key=("area", "user"), window="10 seconds")


CONFIGURATIONS = ["partials", "computed", "consolidated", "eager"]


def job_of(configuration: str, *, many: bool = True) -> JobStream:
    """Return one of the four jobs."""
    made: JobStream = getattr(Forms(many=many), configuration)()
    return made


def flow_of(job: JobStream, **options: Any) -> Dataflow:
    return job_dataflow(job, columns=[LOANS], slack=SLACK, **options)


def loans(flow: Dataflow, seed: int, **shape: Any) -> list[Item]:
    given = {"events": 300, "batches": 6, "disorder": 7 * SECOND, "empty": 0.2, "gaps": 1}
    return stream_of(flow, StreamShape(**(given | shape)), seed)


def events_in(items: Sequence[Item]) -> list[Spanning]:
    found = []
    for batch in batches_of(items):
        for split in batch:
            for part in split:
                for row in part.to_pylist():
                    at = int(row["time"].timestamp() * 1_000_000 + 0.5)
                    named = {name: row[f"s0_{place}"] for place, name in enumerate(LOANS.names)}
                    found.append(Spanning(named, at, at + 1))
    return found


def expected(configuration: str, items: Sequence[Item]) -> Counter[Any]:
    return counted(job_results(job_of(configuration, many=False)._node, {0: events_in(items)}))


def results(tables: Sequence[pa.Table]) -> Counter[Any]:
    return counted(each for table in tables for each in tuples_in(table))


@pytest.mark.sample(4)
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_oracle_configurations(configuration: str, many: bool, tmp_path: Path) -> None:
    """The four configurations, in both forms, with disorder and empty batches."""
    flow = flow_of(job_of(configuration, many=many))
    for seed in (1, 2):
        items = loans(flow, seed)
        tables = drive(partial(open_dataflow, flow, tmp_path / str(seed)), items)
        assert results(tables) == expected(configuration, items)


@pytest.mark.sample(4)
@pytest.mark.parametrize("fuse", ["auto", "none"])
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_parity_any_fusion_gives_equal_results(
    configuration: str, fuse: str, tmp_path: Path
) -> None:
    flow = flow_of(job_of(configuration), fuse=fuse)
    items = loans(flow, 3, nulls=0.1)
    tables = drive(partial(open_dataflow, flow, tmp_path, shards=3), items)
    assert results(tables) == expected(configuration, items)


@pytest.mark.parametrize(
    ("configuration", "fuse"),
    [
        ("partials", "none"),
        ("computed", "measured"),
        *(pytest.param(name, "none", marks=pytest.mark.slow) for name in CONFIGURATIONS[1:]),
        pytest.param("eager", "measured", marks=pytest.mark.slow),
    ],
)
def test_parity_fusions_that_flip_give_equal_results(
    configuration: str, fuse: str, tmp_path: Path
) -> None:
    """Operators run together and apart from batch to batch, and queries die in between."""
    flow = flow_of(job_of(configuration), fuse=fuse)
    names = ways_to_fuse(flow)
    items = loans(flow, 6, nulls=0.1, batches=10)
    chance = np.random.default_rng(7)
    ran = set()
    with small_sizes():
        query = open_dataflow(flow, tmp_path, shards=3)
        tables = []
        for at, batch in enumerate(batches_of(items)):
            query.fuse(names[chance.integers(len(names))])
            tables.append(query.feed(batch))
            assert query.driver.last is not None
            ran.add(str(query.driver.last.decisions["fusion"]["together"]))
            if at % 4 == 2:
                query = open_dataflow(flow, tmp_path, shards=3)
        tables.append(query.flush())
    assert results(tables) == expected(configuration, items)
    assert len(ran) == len(names)


def chain() -> JobStream:
    """Three operators in a row that pass all tuples on."""
    stream = tuples_of(LOANS).map(rated_many, vectorised=True, name="rated")
    for length in (5, 10):
        stream = stream.compute(
            add_many,
            key="area",
            initial=START,
            window=f"{length} seconds",
            emit="tuple",
            vectorised=True,
            name=f"over {length}",
        )
    return stream.compute(
        add_many, key="area", initial=START, window="4 seconds", vectorised=True, name="last"
    )


def test_parity_fusions_by_measured_rows_give_equal_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches get large and small again: operators join and part, and no row changes."""
    monkeypatch.setattr(running_fusion, "JOIN_FROM", 45.0)
    monkeypatch.setattr(running_fusion, "PART_BELOW", 10.0)
    flow = flow_of(chain(), fuse="measured")
    items = loans(flow, 9, batches=12, events=2400)
    shared, tables = [], []
    query = open_dataflow(flow, tmp_path / "measured", shards=2)
    for at, batch in enumerate(batches_of(items)):
        few = [[part.slice(0, 1) for part in split] for split in batch]
        tables.append(query.feed(few if at % 6 > 2 else batch))
        assert query.driver.last is not None
        together = query.driver.last.decisions["fusion"]["together"]
        shared.append(sum(map(len, together)))
        if at == 7:
            query = open_dataflow(flow, tmp_path / "measured", shards=2)
    tables.append(query.flush())
    assert min(shared) == 0
    assert max(shared) >= 2
    fixed = open_dataflow(flow_of(chain(), fuse="auto"), tmp_path / "fixed", shards=2)
    wanted = []
    for at, batch in enumerate(batches_of(items)):
        few = [[part.slice(0, 1) for part in split] for split in batch]
        wanted.append(fixed.feed(few if at % 6 > 2 else batch))
    wanted.append(fixed.flush())
    assert results(tables) == results(wanted)


def test_crash_a_fused_task_that_fails_is_run_again_from_the_version_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the shards that share a task fails at its end, the others count for nothing."""
    flow = flow_of(job_of("partials"), fuse="none")
    items = loans(flow, 12, batches=8)
    finish = OpenShard.finish
    left = [0]

    def failing(self: OpenShard, *given: Any) -> ShardReport:
        left[0] -= 1
        if left[0] == 0:
            msg = "the disk is gone"
            raise OSError(msg)
        return finish(self, *given)

    monkeypatch.setattr(OpenShard, "finish", failing)
    query = open_dataflow(flow, tmp_path, shards=2)
    query.fuse([["add", "merged"]])
    tables = []
    for at, batch in enumerate(batches_of(items)):
        left[0] = 1 + at % 4
        with pytest.raises(OSError, match="disk"):
            query.feed(batch)
        tables.append(query.feed(batch))
    tables.append(query.flush())
    assert results(tables) == expected("partials", items)


def test_only_operators_of_a_job_that_are_partitioned_alike_are_fused(tmp_path: Path) -> None:
    flow = flow_of(job_of("computed"), fuse="none")
    query = open_dataflow(flow, tmp_path)
    with pytest.raises(DefinitionError, match="cannot be fused"):
        query.fuse([[name for each in flow.names for name in each]])


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_a_measured_job_can_run_as_it_would_be_fused(configuration: str) -> None:
    """Also where keys differ, as long as they have attributes in common."""
    job = job_of(configuration)
    measured, fused = flow_of(job, fuse="measured"), flow_of(job)
    begin = RunningFusion.begin(measured.graph, 2)
    named = [[name for name in each if name in _names(measured)] for each in fused.names]
    asked = begin.chosen(measured.graph, [each for each in named if each], measured.names, 2)
    assert len(asked.groups(measured.graph)) == len(fused.components)


def _names(flow: Dataflow) -> set[str]:
    return {name for each in flow.names for name in each}


def ways_to_fuse(flow: Dataflow) -> list[Together]:
    """Return that nothing is fused, and each pair of operators that can be."""
    aligned = [edge for edge in flow.edges if edge.aligned]
    pairs = [
        (flow.names[e.origin][0], flow.names[e.target][0]) for e in aligned if e.origin is not None
    ]
    return ["none", *([pair] for pair in pairs)]


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_changes_on_an_aligned_edge_stay_in_their_shard(configuration: str, tmp_path: Path) -> None:
    flow = flow_of(job_of(configuration), fuse="none")
    aligned = {number for number, edge in enumerate(flow.edges) if edge.aligned}
    went: set[tuple[int, int]] = set()
    running_shards: list[int] = []
    cut = Routing.cut

    def noted(
        self: Routing, edge: int, changes: pa.RecordBatch
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        for shard, part in cut(self, edge, changes):
            if edge in aligned:
                went.add((running_shards[-1] % 3, shard % 3))
            yield shard, part

    run = ShardTask.run

    def running(self: ShardTask, *rest: Any) -> ShardReport:
        running_shards.append(self.shard)
        return run(self, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Routing, "cut", noted)
        patch.setattr(ShardTask, "run", running)
        items = loans(flow, 8)
        drive(partial(open_dataflow, flow, tmp_path, shards=3), items)
    assert all(origin == target for origin, target in went)
    assert bool(went) == bool(aligned)


@pytest.mark.sample(2)
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_oracle_rescaling_and_restarts_change_no_row(configuration: str, tmp_path: Path) -> None:
    """Tasks come and go at every batch, each with a disk of its own, and queries die."""
    flow = flow_of(job_of(configuration), fuse="auto")
    items = loans(flow, 4, batches=8)
    with small_sizes(), separate_disks():
        query = open_dataflow(flow, tmp_path, shards=8)
        tables = []
        for at, batch in enumerate(batches_of(items)):
            rescale(query, at)
            tables.append(query.feed(batch))
            if at % 3 == 2:
                query = open_dataflow(flow, tmp_path, shards=8)
        tables.append(query.flush())
    assert results(tables) == expected(configuration, items)


def test_parity_partials_and_each_give_equal_results(tmp_path: Path) -> None:
    """Sharing between windows does not show in the results."""
    for sharing in ("partials", "each"):
        job = Forms(many=True).partials(sharing)
        flow = flow_of(job)
        items = loans(flow, 5)
        tables = drive(partial(open_dataflow, flow, tmp_path / sharing), items)
        assert results(tables) == expected("partials", items)


def test_oracle_no_tuple_comes_after_its_window_was_reported(tmp_path: Path) -> None:
    """Windows over windows, by every rule: none is told before its last tuple came."""
    for rule in ("begin", "end", "overlap", "inside"):
        jobs = [
            Forms(many=many).compute(
                Forms(many=many)
                .compute(
                    Forms(many=many).loans(),
                    "add",
                    key="area",
                    window=JobWindow("7 seconds", "3 seconds"),
                )
                .map(lambda row: {"rate": row["total"]}, keeps=["area"], name="renamed"),
                "again",
                key="area",
                window=JobWindow("10 seconds", "5 seconds", "1 second", spanning=rule),
            )
            for many in (True, False)
        ]
        flow = flow_of(jobs[0], fuse="none")
        items = loans(flow, 6)
        tables = drive(partial(open_dataflow, flow, tmp_path / rule), items)
        assert results(tables) == counted(job_results(jobs[1]._node, {0: events_in(items)}))


def test_oracle_a_union_of_operators(tmp_path: Path) -> None:
    """TupleBatch of two sources meet in one compute."""

    def job(*, many: bool) -> JobStream:
        forms = Forms(many=many)
        others = tuples_of(LOANS, 1).map(rated, name="rated too")
        return forms.compute(forms.loans()._united([others]), "add", key="area", window="5 seconds")

    flow = job_dataflow(job(many=True), columns=[LOANS, LOANS], slack=SLACK)
    items = stream_of(flow, StreamShape(events=200, batches=4, disorder=5 * SECOND), 7)
    events: dict[int, list[Spanning]] = {0: [], 1: []}
    for batch in batches_of(items):
        for split in batch:
            for part in split:
                for row in part.to_pylist():
                    source, at = row["source"], int(row["time"].timestamp() * 1_000_000 + 0.5)
                    named = {n: row[f"s{source}_{p}"] for p, n in enumerate(LOANS.names)}
                    events[source].append(Spanning(named, at, at + 1))
    tables = drive(partial(open_dataflow, flow, tmp_path), items)
    assert results(tables) == counted(job_results(job(many=False)._node, events))


# -- planning ----------------------------------------------------------------------------------


def names_of(job: JobStream, **options: Any) -> list[set[str]]:
    """Return the names of the operators of each component."""
    plan = planned_job([job._node], **options)
    names = [each.name for each in operators_of([job._node])]
    return [{names[number] for number in each} for each in plan.components]


def test_operators_with_a_common_attribute_share_a_component() -> None:
    found = names_of(job_of("computed"))
    assert {"rated", "add", "halved", "renamed", "add again"} in found
    assert flow_of(job_of("computed")).jobs == 1


def test_an_attribute_that_is_computed_anew_is_not_common() -> None:
    """The second area is another one, though its name is the same."""
    forms = Forms(many=True)
    states = forms.compute(forms.loans(), "add", key="area", window="4 seconds")
    other = states.map(lambda row: {"area": row["n"] % 3, "rate": 1.0}, keeps=[])
    job = forms.compute(other, "again", key="area", window="8 seconds")
    assert {"add"} in [each - {"rated", "function"} for each in names_of(job)]
    assert flow_of(job).jobs == 2


def test_rates_decide_what_is_fused_where_not_all_can_be() -> None:
    """Area or user: the one with more tuples wins."""
    middle = tuples_of(LOANS).compute(
        lambda state, tuples: [state["n"] + tuples.sizes],
        key=("area", "user"), initial={"n": 0}, emit="tuple", vectorised=True, name="middle",
    )  # fmt: skip
    assert middle._payload.equals(LOANS)

    def counts(key: str) -> JobStream:
        return middle.compute(
            lambda state, tuples: [state["n"] + tuples.sizes],
            key=key, initial={"n": 0}, window="5 seconds", vectorised=True, name=f"by {key}",
        )  # fmt: skip

    outputs = [counts("area")._node, counts("user")._node]
    for best, other in (("area", "user"), ("user", "area")):
        rates = {("middle", f"by {best}"): 100.0, ("middle", f"by {other}"): 10.0}
        plan = planned_job(outputs, rates=rates)
        names = [each.name for each in plan.operators]
        together = [{names[number] for number in each} for each in plan.components]
        assert {"middle", f"by {best}"} in together
        assert {f"by {other}"} in together


def test_fusion_by_hand_is_checked() -> None:
    job = job_of("computed")
    assert {"add", "add again", "halved", "renamed"} in names_of(
        job, fuse=[["add", "halved", "renamed", "add again"]]
    )
    with pytest.raises(DefinitionError, match="fuse names"):
        names_of(job, fuse=[["nobody"]])
    with pytest.raises(DefinitionError, match="cannot be fused"):
        names_of(job_of("consolidated"), fuse=[["merged", "everyone"]])


def test_a_stream_crosses_an_exchange_once() -> None:
    """Two computes of one component take the same tuples."""
    forms = Forms(many=True)
    source = forms.loans()
    both = [
        forms.compute(source, name, key="area", window=length)
        for name, length in (("one", "5 seconds"), ("other", "10 seconds"))
    ]
    flow = job_dataflow(*both, columns=[LOANS])
    assert flow.jobs == 1
    assert len(flow.edges) == 1


# -- refusing ----------------------------------------------------------------------------------


def test_what_cannot_work_is_refused_while_a_job_is_written() -> None:
    forms, source = Forms(many=True), tuples_of(LOANS)
    rate = forms.loans()
    with pytest.raises(DefinitionError, match="its input has"):
        forms.compute(rate, "add", key="region", window="5 seconds")
    with pytest.raises(DefinitionError, match="never emits its state"):
        flow_of(forms.compute(rate, "add", key="area"))
    with pytest.raises(DefinitionError, match="put compute"):
        forms.consolidate(rate, "merged", windows="5 seconds")
    with pytest.raises(DefinitionError, match="cannot be filled"):
        forms.consolidate(
            forms.compute(rate, "add", key="area", window="2 seconds"), "m", windows="5 seconds"
        )
    with pytest.raises(DefinitionError, match="only maps"):
        flow_of(rate)
    with pytest.raises(DefinitionError, match="several operators are called"):
        flow_of(
            forms.compute(
                forms.compute(rate, "add", key="area", emit="tuple"), "add", key="area",
                window="5 seconds",
            )
        )  # fmt: skip
    with pytest.raises(DefinitionError, match="could not be inferred"):
        source.map(lambda row: {"x": row["nothing"]})
    with pytest.raises(DefinitionError, match="rename them"):
        tuples_of(pa.schema([("ts1", pa.int64())]))
    with pytest.raises(DefinitionError, match="both keeps and makes"):
        source.map(lambda row: {"area": 1}, keeps=["area"])


def test_a_map_does_not_move_tuples_back(tmp_path: Path) -> None:
    early = tuples_of(LOANS).map(
        lambda row: {"ts1": row["ts1"] - 1}, keeps=LOANS.names, output="", name="early"
    )
    job = early.compute(
        lambda state, row: {"n": state["n"] + 1}, key="area", initial={"n": 0}, window="5 seconds",
        name="count",
    )  # fmt: skip
    flow = flow_of(job)
    with pytest.raises(InputError, match="later times only"):
        drive(partial(open_dataflow, flow, tmp_path), loans(flow, 8))


# -- state -------------------------------------------------------------------------------------


def test_bounded_told_windows_leave_the_state(tmp_path: Path) -> None:
    """After many windows the store holds the open ones."""
    groups = _groups_after("computed", tmp_path)
    assert max(groups) <= 2 * 60


def test_bounded_partials_leave_when_nothing_needs_them(tmp_path: Path) -> None:
    groups = _groups_after("partials", tmp_path)
    assert max(groups) <= 2 * 10


def _groups_after(configuration: str, folder: Path) -> list[int]:
    flow = flow_of(job_of(configuration))
    query: LocalQuery = open_dataflow(flow, folder)
    groups = []
    dice = np.random.default_rng(1)
    for at in range(12):
        count = 200
        times = at * 40 * SECOND + np.sort(dice.integers(0, 40 * SECOND, count))
        batch = pa.record_batch(
            [
                pa.array(times).cast(flow.time),
                pa.array(np.zeros(count, dtype=np.int32)),
                pa.array(dice.integers(at * 5, at * 5 + 5, count)),
                pa.array(dice.integers(0, 3, count)),
                pa.array(dice.random(count)),
            ],
            schema=flow.batch_schema,
        )
        (delivery,) = query.driver.batch(query.next_batch, [[batch]])
        groups.append(delivery.progress["icestream"]["coldState"]["groups"])
    return groups


@pytest.mark.slow
class TestPartials(DataflowConformance):
    """Windows of partials pass what every dataflow passes."""

    flow = flow_of(job_of("partials"))
    exact = True


@pytest.mark.slow
class TestComputed(DataflowConformance):
    """Windows over windows, cut over two components."""

    flow = flow_of(job_of("computed"), fuse="none")
    exact = True


class TestConsolidated(DataflowConformance):
    """Consolidated for all together, in a component of its own."""

    flow = flow_of(job_of("consolidated"))
    exact = True
