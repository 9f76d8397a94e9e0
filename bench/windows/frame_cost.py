"""Processor time of an event in windows that move with events: one process, without Spark.

Idea: wall time says little while other programs run; processor time of one process can be compared
in turn with that of another checkout. A case is VWAP with a row per event into Parquet, 12 features
over 4 keys and 3 ranges (`over`) in 256 MB, or one window per event by one key (`one`) beside eight
by four keys (`eight`). The second half of the batches counts.

Run as `python -m bench.windows.frame_cost vwap|over|one|eight EVENTS_IN_A_BATCH BATCHES`; prints
the microseconds an event of each batch, and the bytes of an event's tuples on the log.

Limits: no bars; `vwap` and `over` measure the same queries on Spark.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench import rows
from bench.windows.over import KEYS, RANGES
from bench.windows.trades import TradeColumns
from icestream.core.units import parse_interval
from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.frames.tuples import SETTLED
from icestream.plan.computation import Computation
from icestream.plan.events.features import FeatureCall, with_features
from icestream.plan.events.queries import compiled
from icestream.plan.nodes.events import FromSource
from icestream.plan.nodes.queries import Plan, Source
from icestream.plan.windows.frame import Frame
from icestream.runtime.local import LocalQuery
from icestream.runtime.tables.layout import TableLayout
from icestream.runtime.version.settings import Settings
from icestream.state.versions.table_files import TableFile

HOUR = 3_600_000_000
INSTANT = pa.timestamp("us", "UTC")
#: bytes of memory of each case
MEMORY = {"vwap": 64 << 20}
MOST_MEMORY = 256 << 20
#: (range, function) of windows by each of some keys
Windows = Sequence[tuple[str, str]]
FEATURES: Windows = [(length, function) for length, _, function in RANGES]


class WrittenTable:
    """A table whose files are written and forgotten."""

    def __init__(self, folder: Path, columns: pa.Schema) -> None:
        """Write to a folder."""
        self.layout = TableLayout(0, "frame-cost", str(folder), columns)

    def latest(self) -> int:
        """Return that nothing was added."""
        return -1

    def add(self, version: int, files: Sequence[TableFile]) -> None:
        """Forget files."""

    def holds(self, paths: Collection[str]) -> set[str]:
        """Return nothing."""
        del paths
        return set()


def vwap_plan() -> Plan:
    """Return the average price of each symbol in the last hour, weighted by volume."""
    return Plan.of(
        windows=Frame(range=HOUR),
        keys=pa.schema([("symbol", pa.int32())]),
        aggregates=(Aggregate.of("weighted_avg", ["x0", "x1"], "vwap"),),
        sources=(Source("trades", 0),),
        inputs=pa.schema([("x0", pa.float64()), ("x1", pa.int32())]),
        expressions=("price", "volume"),
        time=INSTANT,
    )


def over_plan(keys: Collection[str] = tuple(KEYS), windows: Windows = FEATURES) -> Computation:
    """Return windows by keys in the event's row; those of the bench `over` by default."""
    columns = [("key", pa.int64()), ("value", pa.float64()), *((key, pa.int64()) for key in KEYS)]
    calls = [
        FeatureCall(
            function,
            () if function == "count" else ("value",),
            f"{key}_{number}",
            (key,),
            Frame(range=parse_interval(length), peers=True),
        )
        for key in keys
        for number, (length, function) in enumerate(windows)
    ]
    schema = pa.schema(columns)
    node = with_features(FromSource(schema), calls)
    return compiled(((node, "append"),), {0: 0}, (Source("events", 5_000_000),), (schema,), INSTANT)


def vwap_events(first: int, count: int) -> list[object]:
    """Return the columns of trades: 100 a second for each 200,000 of a batch."""
    parts = list(TradeColumns(max(100, count // 2_000)).batches(first, first + count, count))
    times, *others = (np.concatenate(each) for each in zip(*parts, strict=True))
    return [pa.array(times, INSTANT), np.zeros(count, dtype=np.int32), *others]


def over_events(first: int, count: int) -> list[object]:
    """Return the columns of events, with the keys that the bench `over` computes."""
    times, key, value = rows.columns(first, count)
    eighths = (value * 8).astype(np.int64)
    keys = [key * 10_738 + eighths, eighths, eighths % 1_000 * 100 + key, key]
    return [pa.array(times * 1_000, INSTANT), np.zeros(count, dtype=np.int32), key, value, *keys]


CASES: dict[str, tuple[Callable[[], Computation], Callable[[int, int], list[object]]]] = {
    "vwap": (vwap_plan, vwap_events),
    "over": (over_plan, over_events),
    "one": (partial(over_plan, ["card"], [("1 hour", "sum")]), over_events),
    "eight": (partial(over_plan, windows=[(f"{n} minutes", "sum") for n in (30, 60)]), over_events),
}


def costs(case: str, size: int, batches: int) -> Iterator[tuple[float, float]]:
    """Yield the microseconds of processor time an event of each batch, and the bytes on the log."""
    make, events = CASES[case]
    plan = make()
    with tempfile.TemporaryDirectory() as folder:
        memory = MEMORY.get(case, MOST_MEMORY)
        settings = Settings(root=f"{folder}/checkpoint", local=folder, budget=memory)
        table = WrittenTable(Path(folder, "table"), plan.results(plan.views[0]))
        query = LocalQuery(plan, settings, tables=[table])
        # as in the workers of Spark: what was loaded is never garbage
        gc.collect()
        gc.freeze()
        for number in range(batches):
            columns = events(number * size, size)
            whole = pa.table(columns, schema=plan.batch_schema).combine_chunks()
            halves = whole.slice(0, size // 2), whole.slice(size // 2)
            before = time.process_time()
            query.driver.batch(number, [half.to_batches(max_chunksize=100_000) for half in halves])
            taken = (time.process_time() - before) / size * 1e6
            assert query.driver.last is not None
            live = query.driver.store.live(query.driver.last.version)
            logged = sum(each.info.bytes for each in live if each.lifetime == SETTLED)
            yield taken, logged / (size * (number + 1))
        query.close()


def main() -> None:
    """Print the cost of each batch, and the mean of the second half."""
    case, size, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    found, logged = zip(*costs(case, size, batches), strict=True)
    steady = np.mean(found[batches // 2 :])
    print(f"{case}: {' '.join(f'{each:.3f}' for each in found)}; steady {steady:.3f} us an event")
    print(f"{logged[-1]:.1f} bytes of tuples on the log for each event so far")


if __name__ == "__main__":
    main()
