"""Trees of joins that defer results, beside DuckDB: spills, restarts and clean-up at any moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.joins.join_inputs import JoinInputs
from icestream.core.errors import CheckpointError
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.nodes.spilling import Spilling
from icestream.runtime.local import LocalExecutor, LocalQuery
from icestream.runtime.version.task import ShardReport, ShardTask
from icestream.runtime.work.dataflow.work import ComponentShard
from icestream.testing.moving_shards import rescale, separate_disks
from tests.fixtures.dataflow_plans import SECOND, PlanStream, dataflow
from tests.fixtures.join_plans import NAMES, SCHEMAS, batch_of, deferred, forced, sources, tree
from tests.suites.dataflow_conformance import open_dataflow, small_sizes

Rows = Counter[tuple[Any, ...]]

#: how long a batch lasts
SPAN = 10 * SECOND


@dataclass(frozen=True)
class Case:
    """A tree of joins over the first streams, and the same in SQL."""

    flow: Dataflow
    count: int
    conditions: tuple[str, ...]
    lifetime: int | None

    def answer(self, batches: Sequence[Sequence[pa.Table]]) -> Rows:
        """Return the exact join of all that was fed."""
        names = NAMES[: self.count]
        tables = {
            name: pa.concat_tables([batch[number] for batch in batches])
            for number, name in enumerate(names)
        }
        conditions = list(self.conditions)
        if self.lifetime is not None:
            times = ", ".join(f"{name}.t" for name in names)
            conditions.append(f"greatest({times}) < least({times}) + {self.lifetime}")
        shown = ", ".join(f"{name}.{name}" for name in names)
        with duckdb.connect() as connection:
            for name, table in tables.items():
                connection.register(name, table)
            text = f"SELECT {shown} FROM {', '.join(names)} WHERE {' AND '.join(conditions)}"
            return Counter(connection.execute(text).fetchall())


@st.composite
def maps(
    draw: st.DrawFn, stream: PlanStream, keys: list[str]
) -> tuple[PlanStream, list[str], list[str]]:
    """Put filters, a projection and a union behind a join.

    Return them, the columns left to join by, and the conditions of the filters in SQL.
    """
    names = [name for name in NAMES if name in stream.node.payload.names]
    conditions = []
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(names))
        rest = draw(st.integers(0, 4))
        stream = stream.where(f"{name} % 5 <> {rest}")
        conditions.append(f"{_full(name)} % 5 <> {rest}")
    if draw(st.integers(0, 3)) == 0:
        keys = draw(st.lists(st.sampled_from(keys), min_size=1, unique=True))
        stream = stream.select(*keys, *names)
    if draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(names))
        stream = stream.where(f"{name} % 2 = 0").union(stream.where(f"{name} % 2 = 1"))
    return stream, keys, conditions


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(2, 5))
    lifetime = draw(st.sampled_from([None, 12 * SECOND]))
    parts = [
        (stream, [f"{name}1", f"{name}2"])
        for stream, name in zip(sources(lifetime, count), NAMES, strict=False)
    ]
    conditions: list[str] = []
    strategy = draw(st.sampled_from(["global_output_ahead", "local_output"]))
    how = Spilling(strategy=strategy, order=draw(st.sampled_from(["cheapest", "written"])))
    while len(parts) > 1:
        width = draw(st.integers(2, min(3, len(parts))))
        taken, rest = parts[:width], parts[width:]
        columns = [keys for _, keys in taken]
        on = [draw(st.tuples(*map(st.sampled_from, columns)))]
        other = draw(st.tuples(*map(st.sampled_from, columns)))
        if not any(mine == theirs for mine, theirs in zip(on[0], other, strict=True)):
            on.append(other)
        name = on[0][0][0]
        where = draw(st.sampled_from([None, f"{name} % 3 <> 1"]))
        made = deferred(*(s for s, _ in taken), on=on, where=where, spilling=how)
        conditions += [f"{_full(keys[0])} = {_full(key)}" for keys in on for key in keys[1:]]
        conditions += [] if where is None else [f"{_full(name)} % 3 <> 1"]
        known = [column for _, columns in taken for column in columns]
        between, kept, more = draw(maps(made, known))
        conditions += more
        parts = [(between, kept), *rest] if draw(st.booleans()) else [*rest, (between, kept)]
    rows = parts[0][0]
    if draw(st.booleans()):
        rows = rows.select(*NAMES[:count])
    flow = dataflow(rows, "append", SCHEMAS[:count], slack=SPAN)
    return Case(flow, count, tuple(conditions), lifetime)


def _full(column: str) -> str:
    return f"{column[0]}.{column}"


def batches_for(
    count: int, batches: int, rows: int, values: int, seed: int
) -> list[list[pa.Table]]:
    """Make up rows of each stream, with their times; some keys are null."""
    dice = np.random.default_rng(seed)
    made = []
    for batch in range(batches):
        tables = []
        for number, schema in enumerate(SCHEMAS[:count]):
            keys = [
                pa.array(dice.integers(0, values, rows), mask=dice.random(rows) < 0.05)
                for _ in range(2)
            ]
            first = (batch * len(SCHEMAS) + number) * rows
            columns = [*keys, pa.array(np.arange(first, first + rows))]
            times = np.sort(dice.integers(batch * SPAN, (batch + 1) * SPAN, rows))
            table = pa.table(columns, schema=schema)
            tables.append(table.append_column("t", pa.array(times)))
        made.append(tables)
    return made


def fed(flow: Dataflow, tables: Sequence[pa.Table]) -> Any:
    return batch_of(flow, [table.column("t").combine_chunks() for table in tables], tables)


def counted(flow: Dataflow, count: int, table: pa.Table) -> Rows:
    del flow
    columns = [table.column(name).to_pylist() for name in NAMES[:count]]
    return Counter(zip(*columns, strict=True))


def run(
    case: Case,
    folder: Path,
    batches: Sequence[Sequence[pa.Table]],
    *,
    shards: int,
    budget: int,
    between: Callable[[LocalQuery, int], tuple[LocalQuery, list[pa.Table]]] | None = None,
) -> Rows:
    """Feed all batches, doing something between them, and flush; return all rows."""
    found: Rows = Counter()
    query = open_dataflow(case.flow, folder, budget=budget, shards=shards)
    for number, tables in enumerate(batches):
        found += counted(case.flow, case.count, query.feed(fed(case.flow, tables)))
        if between is not None:
            query, more = between(query, number)
            for table in more:
                found += counted(case.flow, case.count, table)
    found += counted(case.flow, case.count, query.flush())
    query.close()
    return found


QUIET = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


@given(case=cases(), seed=st.integers(0, 1 << 16), shards=st.sampled_from([1, 2, 4]))
@settings(max_examples=12, deadline=None, suppress_health_check=QUIET)
def test_oracle_random_trees_with_spills_restarts_and_clean_up_anywhere(
    case: Case, seed: int, shards: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dice = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("joins")
    batches = batches_for(case.count, 5, 8, 10, seed)

    def between(query: LocalQuery, number: int) -> tuple[LocalQuery, list[pa.Table]]:
        rows = []
        if dice.random() < 0.3:
            query.close()
            query = open_dataflow(case.flow, folder, budget=budget, shards=shards)
        if dice.random() < 0.3:
            rows.append(query.clean_up())
        if dice.random() < 0.3:
            rows.append(query.feed([]))
        return query, rows

    with small_sizes(), forced(dice, 0.6):
        budget = shards * case.flow.jobs * int(dice.choice([96, 256, 1024])) << 10
        found = run(case, folder, batches, shards=shards, budget=budget, between=between)
    assert found == case.answer(batches)


@given(case=cases())
@settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
def test_any_tree_with_filters_projections_and_unions_is_compiled(case: Case) -> None:
    assert case.flow.views[0].payload.names


@pytest.mark.slow
def test_oracle_rescaling_at_any_batch_changes_no_row(tmp_path: Path) -> None:
    case = five(25 * SECOND)
    batches = batches_for(5, 4, 40, 20, 4)

    def between(query: LocalQuery, number: int) -> tuple[LocalQuery, list[pa.Table]]:
        rescale(query, number)
        return query, []

    with small_sizes(), separate_disks(), forced(np.random.default_rng(2), 0.6):
        found = run(case, tmp_path, batches, shards=8, budget=16 << 20, between=between)
    assert found == case.answer(batches)


def five(lifetime: int | None = None, how: Spilling | None = None, *, narrow: bool = False) -> Case:
    flow = tree(lifetime, how, narrow=narrow, slack=SPAN)
    conditions = ("a.a1 = b.b1", "b.b1 = c.c1", "c.c2 = d.d1", "d.d2 = e.e1")
    return Case(flow, 5, conditions, lifetime)


@pytest.mark.parametrize(("lifetime", "threshold"), [(None, 0.2), (25 * SECOND, 0.04)])
def test_oracle_spills_by_pressure_alone(
    tmp_path: Path, lifetime: int | None, threshold: float
) -> None:
    case = five(lifetime, Spilling(threshold=threshold))
    batches = batches_for(5, 8, 120, 500, 3)
    spills, logged = 0, 0
    with small_sizes():
        query = open_dataflow(case.flow, tmp_path, budget=2 << 20, shards=2)
        found: Rows = Counter()
        for number, tables in enumerate(batches):
            (delivery,) = query.driver.batch(number, fed(case.flow, tables))
            found += counted(case.flow, 5, query.rows([delivery]))
            reported = delivery.progress["icestream"]
            assert reported["stateMemoryBytes"] <= reported["budgetBytes"]
            spills, logged = reported["spills"], logged + reported["bytesLogged"]
        early = found.total()
        found += counted(case.flow, 5, query.flush())
    assert spills > 0
    assert logged > 0
    assert 0 < early < found.total()
    assert found == case.answer(batches)


@pytest.mark.slow
def test_oracle_a_deferring_join_gives_the_rows_of_a_fetching_one(tmp_path: Path) -> None:
    case = five(25 * SECOND)
    batches = batches_for(5, 4, 40, 20, 9)
    with small_sizes(), forced(np.random.default_rng(1), 0.7):
        found = run(case, tmp_path / "defer", batches, shards=2, budget=4 << 20)
    fetching = replace(case, flow=_fetching(25 * SECOND))
    assert found == run(fetching, tmp_path / "fetch", batches, shards=2, budget=32 << 20)


def _fetching(lifetime: int) -> Dataflow:
    a, b, c, d, e = sources(lifetime)
    rows = _pairs(
        _pairs(_pairs(_pairs(a, b, "a1", "b1"), c, "a1", "c1"), d, "c2", "d1"), e, "d2", "e1"
    )
    return dataflow(rows, "append", SCHEMAS, slack=SPAN)


def _pairs(left: PlanStream, right: PlanStream, one: str, other: str) -> PlanStream:
    mine = left.where(f"{one} IS NOT NULL").select("*", f"{one} AS key")
    theirs = right.where(f"{other} IS NOT NULL").select("*", f"{other} AS key")
    kept = [*left.node.payload.names, *right.node.payload.names]

    def join(x: PlanStream, y: PlanStream) -> PlanStream:
        twin = y.select(*right.node.payload.names, "key AS twin")
        return x.join(twin, hidden=["twin"])

    return mine.apply(["key"], join, theirs).select(*kept)


def test_hidden_columns_are_not_in_results(tmp_path: Path) -> None:
    case = five(narrow=True)
    batches = batches_for(5, 3, 20, 10, 4)
    with small_sizes(), forced(np.random.default_rng(2), 0.5):
        query = open_dataflow(case.flow, tmp_path, budget=4 << 20)
        assert query.feed(fed(case.flow, batches[0])).column_names == ["lifetime", *NAMES]
        query.close()
        found = run(case, tmp_path / "all", batches, shards=2, budget=4 << 20)
    assert found == case.answer(batches)


class _Dies(Exception):
    pass


def test_crash_in_the_middle_of_a_clean_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = five()
    batches = batches_for(5, 3, 40, 20, 5)
    run_tasks = LocalExecutor.run

    def dies(self: LocalExecutor, tasks: list[ShardTask]) -> list[ShardReport]:
        done = run_tasks(self, tasks)
        if tasks[0].shard >= 2:
            raise _Dies
        return done

    with small_sizes(), forced(np.random.default_rng(3), 1.0):
        query = open_dataflow(case.flow, tmp_path, budget=4 << 20)
        found: Rows = Counter()
        for tables in batches:
            found += counted(case.flow, 5, query.feed(fed(case.flow, tables)))
        with monkeypatch.context() as patched:
            patched.setattr(LocalExecutor, "run", dies)
            with pytest.raises(_Dies):
                query.clean_up()
        again = open_dataflow(case.flow, tmp_path, budget=4 << 20)
        cleaned = counted(case.flow, 5, again.clean_up())
        assert cleaned
        assert again.clean_up().num_rows == 0
        found += cleaned + counted(case.flow, 5, again.flush())
    assert found == case.answer(batches)


@pytest.mark.parametrize("lifetime", [None, 25 * SECOND])
def test_oracle_a_restart_with_less_memory_changes_no_row(
    tmp_path: Path, lifetime: int | None
) -> None:
    case = five(lifetime)
    batches = batches_for(5, 8, 120, 500, 3)
    found: Rows = Counter()
    with small_sizes():
        for budget, some in ((8 << 20, batches[:4]), (1 << 20, batches[4:6]), (2 << 20, batches)):
            query = open_dataflow(case.flow, tmp_path, budget=budget, shards=2)
            for tables in some if some is not batches else batches[6:]:
                found += counted(case.flow, 5, query.feed(fed(case.flow, tables)))
            if some is not batches:
                query.close()
        found += counted(case.flow, 5, query.flush())
    assert found == case.answer(batches)


def test_oracle_pairs_of_history_are_not_handed_out_later(tmp_path: Path) -> None:
    case = five()
    batches = batches_for(5, 4, 20, 20, 12)
    with small_sizes():
        query = open_dataflow(case.flow, tmp_path, budget=8 << 20)
        with forced(np.random.default_rng(4), 1.0):
            for tables in batches[:2]:
                query.driver.bootstrap(fed(case.flow, tables))
        query.close()
        query = open_dataflow(case.flow, tmp_path, budget=8 << 20)
        assert query.clean_up().num_rows == 0
        found: Rows = Counter()
        for tables in batches[2:]:
            found += counted(case.flow, 5, query.feed(fed(case.flow, tables)))
        found += counted(case.flow, 5, query.flush())
    assert found == case.answer(batches) - case.answer(batches[:2])


def test_idle_batches_clean_up_a_few_partitions_each(tmp_path: Path) -> None:
    case = five()
    batches = batches_for(5, 3, 60, 40, 6)
    with small_sizes():
        query = open_dataflow(case.flow, tmp_path, budget=8 << 20)
        found: Rows = Counter()
        with forced(np.random.default_rng(4), 1.0):
            for tables in batches:
                found += counted(case.flow, 5, query.feed(fed(case.flow, tables)))
        idle = 0
        query.feed([])
        while query.driver.last is not None and query.driver.last.decisions["waiting"]:
            found += counted(case.flow, 5, query.feed([]))
            idle += 1
    assert idle > 1
    assert found == case.answer(batches)


def test_results_come_at_once_again_after_everything_was_spilled(tmp_path: Path) -> None:
    case = five()
    batches = batches_for(5, 6, 60, 200, 6)
    query = open_dataflow(case.flow, tmp_path, budget=64 << 20)
    with forced(np.random.default_rng(4), 1.0):
        for tables in batches[:3]:
            query.feed(fed(case.flow, tables))
    query.clean_up()
    early = sum(query.feed(fed(case.flow, tables)).num_rows for tables in batches[3:])
    query.close()
    missed = case.answer(batches) - case.answer(batches[:3])
    assert early > 0.95 * missed.total()


@pytest.mark.slow
def test_clean_up_between_batches_lowers_no_early_output(tmp_path: Path) -> None:
    """A clean-up after every other batch, in little memory."""
    inputs = JoinInputs((3, 2, 3), 2_000, seed=1)
    schemas = [pa.schema([(f"{n}1", pa.int64()), (f"{n}2", pa.int64())]) for n in NAMES]
    how = Spilling(order="written", partitions=300, sample=1.0)
    a, b, c, d, e = (PlanStream.of(each, n).forever() for n, each in enumerate(schemas))
    abc = deferred(a, b, c, on=[("a1", "b1", "c1")], spilling=how)
    abcd = deferred(abc, d, on=[("c2", "d1")], spilling=how)
    flow = dataflow(deferred(abcd, e, on=[("d2", "e1")], spilling=how), "append", schemas, SECOND)
    early = {}
    for every in (0, 2):
        query = open_dataflow(flow, tmp_path / str(every), budget=4 << 20, shards=1)
        early[every] = late = 0
        for number, batch in enumerate(inputs.batches(20)):
            tables = [pa.Table.from_batches([batch[name]]) for name in NAMES]
            times = [pa.array(np.full(each.num_rows, number * SECOND)) for each in tables]
            early[every] += query.feed(batch_of(flow, times, tables)).num_rows
            if every and number % every:
                late += query.clean_up().num_rows
        late += query.clean_up().num_rows
        query.close()
        assert early[every] + late == inputs.results
    assert early[2] >= 0.95 * early[0]


def test_shards_that_are_full_spill_by_the_rule_of_the_plan(tmp_path: Path) -> None:
    case = five(how=Spilling(strategy="global_output", threshold=1.0))
    batches = batches_for(5, 3, 4000, 6000, 6)
    query = open_dataflow(case.flow, tmp_path, budget=6 << 20)
    counts: Counter[str] = Counter()
    for number, tables in enumerate(batches):
        (delivery,) = query.driver.batch(number, fed(case.flow, tables))
        assert delivery.progress is not None
        for join in delivery.progress["icestream"]["joins"]:
            counts.update({name: join[name] for name in ("bytesForced", "bytesUnranked")})
    query.close()
    assert counts["bytesForced"] > 0
    assert counts["bytesUnranked"] == 0


def test_a_stream_that_is_over_takes_no_batch(tmp_path: Path) -> None:
    case = five()
    batches = batches_for(5, 2, 20, 10, 7)
    with small_sizes(), forced(np.random.default_rng(5), 1.0):
        query = open_dataflow(case.flow, tmp_path, budget=8 << 20)
        found: Rows = Counter()
        for tables in batches:
            found += counted(case.flow, 5, query.feed(fed(case.flow, tables)))
        found += counted(case.flow, 5, query.clean_up(last=True))
        assert found == case.answer(batches)
        with pytest.raises(CheckpointError, match="has ended"):
            query.feed(fed(case.flow, batches[0]))


def test_a_checkpoint_goes_on_by_another_strategy(tmp_path: Path) -> None:
    case, batches = five(), batches_for(5, 2, 20, 10, 7)
    found: Rows = Counter()
    with small_sizes(), forced(np.random.default_rng(5), 1.0):
        for tables, strategy in zip(batches, ("global_output", "largest"), strict=True):
            flow = five(how=Spilling(strategy=strategy, threshold=0.5, amount=0.2)).flow
            query = open_dataflow(flow, tmp_path, budget=8 << 20)
            found += counted(flow, 5, query.feed(fed(flow, tables)))
        found += counted(case.flow, 5, query.clean_up(last=True))
    assert found == case.answer(batches)


def test_a_checkpoint_of_other_partitions_or_joins_is_refused(tmp_path: Path) -> None:
    open_dataflow(five().flow, tmp_path)
    with pytest.raises(CheckpointError, match="partitions"):
        open_dataflow(five(how=Spilling(partitions=300)).flow, tmp_path)
    with pytest.raises(CheckpointError, match="another query"):
        open_dataflow(five(narrow=True).flow, tmp_path)


def test_oracle_flat_and_nested_joins_agree(tmp_path: Path) -> None:
    a, b, c, _, _ = sources(25 * SECOND)
    inner = deferred(a, b, on=[("a1", "b1")])
    flat = dataflow(deferred(inner, c, on=[("b1", "c1")]), "append", SCHEMAS[:3], slack=SPAN)
    passed_on = inner.select(*inner.node.payload.names)
    nested = dataflow(deferred(passed_on, c, on=[("b1", "c1")]), "append", SCHEMAS[:3], slack=SPAN)
    assert (flat.jobs, nested.jobs) == (1, 2)
    case = Case(flat, 3, ("a.a1 = b.b1", "b.b1 = c.c1"), 25 * SECOND)
    batches = batches_for(3, 5, 40, 15, 8)
    with small_sizes(), forced(np.random.default_rng(8), 0.7):
        one = run(case, tmp_path / "flat", batches, shards=2, budget=4 << 20)
        other = replace(case, flow=nested)
        two = run(other, tmp_path / "nested", batches, shards=2, budget=4 << 20)
    assert one == two == case.answer(batches)


def test_a_join_that_owes_results_holds_the_watermark_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = five(25 * SECOND)
    run_tasks = LocalExecutor.run
    seen: list[int] = []

    def noting(self: LocalExecutor, tasks: list[ShardTask]) -> list[ShardReport]:
        works = [task.work for task in tasks]
        seen.extend(w.orders.watermark for w in works if isinstance(w, ComponentShard))
        return run_tasks(self, tasks)

    monkeypatch.setattr(LocalExecutor, "run", noting)
    batches = batches_for(5, 5, 30, 60, 2)
    with small_sizes():
        query = open_dataflow(case.flow, tmp_path, budget=4 << 20, shards=1)
        with forced(np.random.default_rng(6), 1.0):
            for tables in batches:
                query.feed(fed(case.flow, tables))
        first, second, third = seen[-3:]
        assert third <= second < first
        query.clean_up()
        first, second, third = seen[-3:]
        assert first == second == third
