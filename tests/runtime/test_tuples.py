from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates import Aggregate
from icestream.plan.lower import window_spec
from icestream.plan.nodes import Plan
from icestream.runtime import tuples
from icestream.runtime.exchange import ExchangeWriter, Parcels
from icestream.runtime.tuples import Leaving, TupleWriter
from icestream.state.log.format import SegmentInfo
from icestream.testing.faulty_files import SimulatedDisk
from icestream.testing.plans import window_plan
from icestream.testing.sources import SECOND, Shape, random_events

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
    info = out.finish().kept
    assert info is not None
    return info


def folded(disk: SimulatedDisk, leaving: Leaving, parts: int) -> Counter[tuple[int, int]]:
    """Fold what leaves in so many parts; return events by family and pane."""
    found: Counter[tuple[int, int]] = Counter()
    width = window_spec(leaving.plan).layout.entry_width + 1
    for part in range(parts):
        path = f"leaving-{parts}-{part}"
        out = ExchangeWriter(disk, path, disk, "root", path)
        leaving.run(part, parts, out)
        out.finish()
        for shard in range(2):
            for family in range(len(leaving.spans)):
                for table in Parcels(disk, [path], shard, width).leaving(family):
                    for pane, count in zip(table[:, 0], table[:, 3], strict=True):
                        found[family, int(pane)] += int(count)
    return found


@pytest.mark.parametrize("rows_at_once", [7, 65536])
def test_bounded_leaving_reads_block_by_block(
    monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr(tuples, "BLOCK_BYTES", 256)
    monkeypatch.setattr(tuples, "FOLD_ROWS", rows_at_once)
    disk = SimulatedDisk()
    shape = Shape(events=150, span=40 * SECOND, groups=9, nulls=0.1)
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
        leaving = Leaving(PLAN, 1, routes, disk, "root", spans, segments)
        assert folded(disk, leaving, parts) == expected
    assert disk.open_handles == 0
