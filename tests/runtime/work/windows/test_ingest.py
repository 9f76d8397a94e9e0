from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.core.errors import InputError
from icestream.core.times import MINUS_INFINITY
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN, LAST, EntryTable
from icestream.plan.grid.lower import window_spec
from icestream.plan.nodes.queries import Plan, View, WindowKind
from icestream.plan.windows.frame import Frame
from icestream.plan.windows.grid import Cumulative, Windows
from icestream.plan.windows.session import Session
from icestream.runtime.exchange.parcels import ExchangeWriter, ParcelReader, Parcels, SplitReport
from icestream.runtime.local import read_rows
from icestream.runtime.work.windows.folding import TABLE_BYTES
from icestream.runtime.work.windows.ingest import Ingest
from icestream.testing.simulated_disk import SimulatedDisk
from icestream.testing.sources import SECOND, StreamShape, random_events
from tests.fixtures.plans import open_query, window_plan
from tests.oracles.grid import ObviousWindows, rows_of

COUNT = [Aggregate("count", None, "n")]


def routes(plan: Plan, shards: int) -> tuple[int, ...]:
    return tuple(group * shards // plan.key_groups for group in range(plan.key_groups))


def run(
    plan: Plan,
    batches: list[pa.RecordBatch],
    watermark: int = MINUS_INFINITY,
    table_bytes: int = TABLE_BYTES,
) -> tuple[SplitReport, SimulatedDisk]:
    disk = SimulatedDisk()
    out = ExchangeWriter(disk, "parcel", disk, "root", "split")
    report = Ingest(plan, 1, watermark, routes(plan, 3), table_bytes).run(batches, out)
    out.finish()
    return report, disk


def panes_and_keys(stream: pa.RecordBatch) -> tuple[list[int], list[int]]:
    """Return the pane of 2 seconds and the key of each event."""
    times = stream.column("time").cast(pa.int64()).to_numpy()
    return (times // (2 * SECOND)).tolist(), stream.column("k0").to_pylist()


def events(plan: Plan, *rows: tuple[float | None, int, int]) -> pa.RecordBatch:
    """Make events of (second, source, key)."""
    times = [None if t is None else int(t * SECOND) for t, _, _ in rows]
    return pa.record_batch(
        [
            pa.array(times, pa.int64()).cast(plan.time),
            pa.array([source for _, source, _ in rows], pa.int32()),
            pa.array([key for _, _, key in rows]),
            pa.array([1.0] * len(rows)),
        ],
        schema=plan.batch_schema,
    )


def test_late_events_are_judged_by_the_watermark_before_the_batch() -> None:
    # range 4, slide 2, watermark 9: windows that end at or before 9 have closed, so an event counts
    # from second 6 on, whatever else is in its batch
    plan = window_plan("4 seconds", "2 seconds", slack=0, aggregates=COUNT, late="keep")
    batch = events(plan, (100, 0, 1), (6, 0, 1), (5.999999, 0, 2), (-3, 0, 3))
    report, disk = run(plan, [batch], watermark=9 * SECOND)
    assert (report.rows, report.late, report.entries) == (4, 2, 2)
    assert report.seen == {0: 100 * SECOND}
    kept = pa.concat_tables(read_rows(disk, "root/results/split-late.rows"))
    assert kept.column("k0").to_pylist() == [2, 3]
    report, disk = run(plan, [batch])
    assert report.late == 0
    assert not disk.exists("root/results/split-late.rows")


def test_oracle_late_events_are_counted_as_the_obvious_computation_counts_them(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    plan = window_plan("4 seconds", "2 seconds", slack="1 second", aggregates=COUNT, late="keep")
    shape = StreamShape(events=300, disorder=20 * SECOND)
    stream = random_events(plan, shape, np.random.default_rng(1))
    oracle = ObviousWindows(plan)
    query = open_query(plan, str(tmp_path_factory.mktemp("query")))
    for at in range(0, 300, 50):
        splits = [[stream.slice(at, 25)], [stream.slice(at + 25, 25)]]
        (delivery,) = query.driver.batch(query.next_batch, splits)
        before = oracle.late
        oracle.feed(splits)
        kept = sum(t.num_rows for path in delivery.late for t in read_rows(query.files, path))
        assert kept == oracle.late - before
        assert delivery.commit.totals["late"] == oracle.late
    assert oracle.late > 20


def test_entries_go_to_the_shard_of_their_key_group() -> None:
    plan = window_plan("4 seconds", "2 seconds", aggregates=COUNT)
    stream = random_events(plan, StreamShape(events=200, groups=50), np.random.default_rng(2))
    few = 7 * EntryTable.row_bytes(window_spec(plan).layout)
    report, disk = run(plan, [stream.slice(0, 90), stream.slice(90)], table_bytes=few)
    assert report.entries > len(set(zip(*panes_and_keys(stream), strict=True)))
    layout = window_spec(plan).layout
    counted: Counter[int] = Counter()
    for shard in range(3):
        parcels = Parcels(ParcelReader(disk, ["parcel"]), shard, layout)
        groups: dict[tuple[int, int], int] = {}
        for keys in parcels.groups():
            for id_high, id_low, last in zip(
                *(keys.column(n).to_pylist() for n in (ID_HIGH_COLUMN, ID_LOW_COLUMN, LAST)),
                strict=True,
            ):
                group = ((id_high >> 32) * plan.key_groups) >> 32
                assert routes(plan, 3)[group] == shard
                groups[id_high, id_low] = max(last, groups.get((id_high, id_low), last))
        for entries in parcels.entries():
            table = entries.table
            assert table[:, 0].tolist() == sorted(table[:, 0].tolist())
            for pane, id_high, id_low, rows in table[:, :4].tolist():
                counted[pane] += rows
                assert groups[id_high % 2**64, id_low % 2**64] >= pane
    assert counted == Counter(panes_and_keys(stream)[0])
    assert sum(report.load.values()) == report.entries


def test_the_same_split_makes_the_same_parcel() -> None:
    plan = window_plan("4 seconds", "2 seconds")
    stream = random_events(
        plan, StreamShape(events=300, groups=40, nulls=0.1), np.random.default_rng(3)
    )
    one, other = (run(plan, [stream])[1] for _ in range(2))
    assert one.read("parcel") == other.read("parcel")


def test_the_latest_time_of_each_source_is_reported() -> None:
    plan = window_plan(slack=[0, 0, 0], aggregates=COUNT)
    first = events(plan, (5, 0, 1), (9, 2, 1), (3, 2, 1))
    report, _ = run(plan, [first, events(plan, (4, 0, 1), (10, 2, 1)), first.slice(0, 0)])
    assert report.seen == {0: 5 * SECOND, 2: 10 * SECOND}


def test_events_without_time_are_refused_or_counted() -> None:
    strict = window_plan(aggregates=COUNT)
    batch = events(strict, (None, 0, 1), (1, 0, 1), (None, 0, 2))
    with pytest.raises(InputError, match=r"2 events of source0 have no time .*nulls='drop'"):
        run(strict, [batch])
    report, _ = run(window_plan(aggregates=COUNT, nulls="drop"), [batch])
    assert (report.rows, report.without_time, report.entries) == (3, 2, 1)


def test_every_grouping_set_is_a_group_of_its_own() -> None:
    plan = window_plan(
        keys=pa.schema([("a", pa.int64()), ("b", pa.int64())]),
        aggregates=COUNT,
        grouping_sets=((0, 1), (0,), ()),
    )
    stream = random_events(
        plan, StreamShape(events=50, groups=3, nulls=0.4), np.random.default_rng(4)
    )
    disk = run(plan, [stream])[1]
    reader = ParcelReader(disk, ["parcel"])
    found = [keys for shard in range(3) for keys in Parcels(reader, shard).groups()]
    rows = pa.concat_tables(found).select(["a", "b", "grouping_id"]).to_pylist()
    a, b = (stream.column(name).to_pylist() for name in ("k0", "k1"))
    expected = {(x, y, 0) for x, y in zip(a, b, strict=True)} | {(x, None, 1) for x in a}
    assert {tuple(row.values()) for row in rows} == expected | {(None, None, 3)}


def test_batches_without_events_make_an_empty_parcel() -> None:
    plan = window_plan(aggregates=COUNT)
    report, disk = run(plan, [events(plan)])
    assert (report.rows, report.entries, report.seen) == (0, 0, {})
    assert list(Parcels(ParcelReader(disk, ["parcel"]), 0).entries()) == []


def test_rows_of_an_empty_query_have_the_result_columns(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    plan = window_plan()
    query = open_query(plan, str(tmp_path_factory.mktemp("query")))
    assert query.feed([]).schema == plan.results(plan.views[0])
    assert rows_of(query.flush()) == []


def test_the_last_of_more_rows_than_24_bits_count_is_the_last(tmp_path: Path) -> None:
    plan = window_plan(
        "4 seconds", "4 seconds", slack=0, aggregates=[Aggregate("last", "value", "last")]
    )
    rows, parts = 1 << 20, 17
    many = pa.record_batch(
        [
            pa.array(np.ones(rows, dtype=np.int64)).cast(plan.time),
            pa.array(np.zeros(rows, dtype=np.int32)),
            pa.array(np.zeros(rows, dtype=np.int64)),
            pa.array(np.zeros(rows)),
        ],
        schema=plan.batch_schema,
    )
    end = many.slice(0, 1).set_column(3, plan.batch_schema.field(3), pa.array([7.0]))
    query = open_query(plan, str(tmp_path))
    query.feed([[many] * parts + [end]])
    assert rows_of(query.flush())[0][-1] == 7.0


KINDS: list[WindowKind] = [
    Windows(10 * SECOND, 5 * SECOND),
    Cumulative(10 * SECOND, 5 * SECOND),
    Frame(range=10 * SECOND),
    Frame(rows=3, slide=5 * SECOND),
    Session(10 * SECOND),
]


@pytest.mark.parametrize("windows", KINDS, ids=lambda windows: windows.describe()["kind"])
@pytest.mark.parametrize("time", [2**63 - 1, 2**62 + 1, -(2**62) - 1, -(2**63)])
def test_times_near_the_ends_of_64_bits_are_refused_by_name(
    tmp_path: Path, windows: WindowKind, time: int
) -> None:
    plan = replace(
        window_plan("4 seconds", "4 seconds", slack=0, aggregates=COUNT),
        views=(View(windows, tuple(COUNT), ((0,),), (0,)),),
    )

    def at(*times: int) -> pa.RecordBatch:
        good = events(plan, *((0, 0, 1) for _ in times))
        return good.set_column(0, plan.batch_schema.field(0), pa.array(times).cast(plan.time))

    with pytest.raises(InputError, match=rf"{time:,} microseconds.*filter the event out"):
        open_query(plan, f"{tmp_path}/bad").feed([[at(0, time)]])
    query = open_query(plan, f"{tmp_path}/good")
    found = [*rows_of(query.feed([[at(-(2**62), 2**62)]])), *rows_of(query.flush())]
    assert {row[-1] for row in found} <= {1, 2}
    assert len({row[0] for row in found}) >= 2
