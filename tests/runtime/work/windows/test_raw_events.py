from __future__ import annotations

from collections import Counter
from contextlib import closing
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.grid.lower import window_spec
from icestream.plan.nodes.queries import Plan
from icestream.plan.windows.grid import Windows
from icestream.runtime.exchange.parcels import ExchangeWriter, ParcelReader, Parcels, SplitReport
from icestream.runtime.work.windows import raw_events
from icestream.runtime.work.windows.raw_events import ExpiredEventFold, TupleWriter
from icestream.state.log.format import SegmentInfo
from icestream.testing.simulated_disk import SimulatedDisk
from icestream.testing.sources import SECOND, StreamShape, random_events
from tests.fixtures.plans import window_plan

PLAN = window_plan(
    "6 seconds",
    "2 seconds",
    inputs=pa.schema([("x0", pa.int64())]),
    aggregates=[Aggregate("count", None, "n"), Aggregate("sum", "x0", "s")],
)


def kept(disk: SimulatedDisk, plan: Plan, batch: pa.RecordBatch, ordinal: int) -> SegmentInfo:
    """Keep the events of a batch in a segment of their own."""
    out = ExchangeWriter(disk, f"parcel-{ordinal}", disk, "root", f"{ordinal}")
    writer = TupleWriter(out.keep(ordinal), plan)
    times = batch.column("time").cast(pa.int64()).to_numpy()
    writer.append(batch, times)
    info = out.finish().raw_events
    assert info is not None
    return info


def folded(
    disk: SimulatedDisk, leaving: ExpiredEventFold, parts: int
) -> tuple[Counter[tuple[int, int]], list[SplitReport]]:
    """Fold what leaves in so many parts; return events by family and pane, and the reports."""
    found: Counter[tuple[int, int]] = Counter()
    reports = []
    layout = window_spec(leaving.plan).layout
    for part in range(parts):
        path = f"leaving-{len(disk.trace)}"
        out = ExchangeWriter(disk, path, disk, "root", path)
        reports.append(leaving.run(part, parts, out))
        out.finish()
        with closing(ParcelReader(disk, [path])) as reader:
            for shard in range(2):
                for family in range(len(leaving.spans)):
                    for entries in Parcels(reader, shard, layout).leaving(family):
                        table = entries.table
                        for pane, count in zip(table[:, 0], table[:, 3], strict=True):
                            found[family, int(pane)] += int(count)
    return found, reports


@pytest.mark.parametrize("rows_at_once", [7, 65536])
def test_bounded_leaving_reads_block_by_block(
    monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr(raw_events, "BLOCK_BYTES", 256)
    monkeypatch.setattr(raw_events, "FOLD_ROWS", rows_at_once)
    disk = SimulatedDisk()
    shape = StreamShape(events=150, span=40 * SECOND, groups=9, nulls=0.1)
    batches = [random_events(PLAN, shape, np.random.default_rng(seed)) for seed in range(3)]
    segments = tuple(kept(disk, PLAN, batch, n) for n, batch in enumerate(batches))
    assert all(info.records > 5 for info in segments)
    times = np.concatenate([b.column("time").cast(pa.int64()).to_numpy() for b in batches])
    low = int(np.quantile(times, 0.3)) // (2 * SECOND) * 2 * SECOND
    spans = ((low, low + 6 * SECOND), (low - 4 * SECOND, low))
    routes = tuple(group % 2 for group in range(PLAN.key_groups))
    expected = Counter(
        (family, int(time // (2 * SECOND)))
        for family, (first, end) in enumerate(spans)
        for time in times
        if first <= time < end
    )
    assert expected
    for parts in (1, 2):
        leaving = ExpiredEventFold(PLAN, 1, routes, disk, "root", spans, segments)
        assert folded(disk, leaving, parts)[0] == expected
    assert disk.open_handles == 0


def test_bounded_a_block_that_leaves_several_windows_is_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(raw_events, "BLOCK_BYTES", 1024)
    windows = (6 * SECOND, 60 * SECOND)
    plan = replace(
        PLAN,
        views=tuple(
            replace(PLAN.views[0], windows=Windows(reach, 2 * SECOND)) for reach in windows
        ),
    )
    disk = SimulatedDisk()
    times = pa.array(np.arange(4000) * (SECOND // 40)).cast(plan.time)
    whole = random_events(plan, StreamShape(events=4000), np.random.default_rng(1))
    columns = [times, *whole.columns[1:]]
    info = kept(disk, plan, pa.RecordBatch.from_arrays(columns, schema=whole.schema), 0)
    per_second = info.records / 100
    routes = (0,) * plan.key_groups
    # events of 100 s; the watermark goes from 80 to 90: the windows let 10 seconds each go
    spans = tuple(window_spec(plan).leaves(80 * SECOND, 90 * SECOND))
    assert spans == ((76 * SECOND, 86 * SECOND), (22 * SECOND, 32 * SECOND))
    found, (report,) = folded(
        disk, ExpiredEventFold(plan, 1, routes, disk, "root", spans, (info,)), 1
    )
    assert sum(found.values()) == 2 * 400
    assert report.blocks == report.block_uses
    assert 20 * per_second <= report.blocks <= 25 * per_second
    assert report.block_bytes > 1000 * report.blocks / 2
    # from nothing to 70: the long windows let 12 seconds go, which the short ones do as well
    spans = tuple(window_spec(plan).leaves(-(2**62), 70 * SECOND))
    _, (report,) = folded(disk, ExpiredEventFold(plan, 1, routes, disk, "root", spans, (info,)), 1)
    assert report.blocks <= 68 * per_second < report.block_uses
    assert disk.open_handles == 0
