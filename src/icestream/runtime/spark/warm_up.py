"""Runs the kernels of windows on a grid once, so that forked workers have them compiled."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa

from icestream.operators.aggregates.aggregate import applicable
from icestream.plan.nodes.queries import Plan, Source
from icestream.plan.windows.grid import Windows
from icestream.runtime.local import LocalQuery
from icestream.runtime.version.quotas import LEAST_QUOTA
from icestream.runtime.version.settings import Settings

_SECOND = 1_000_000


def kernels() -> None:
    """Warm up: run a small query that uses every kernel."""
    inputs = pa.schema([("x0", pa.float64()), ("x1", pa.int64()), ("x2", pa.int32())])
    plan = Plan.of(
        sources=(Source("warm-up", 0),),
        windows=Windows(2 * _SECOND, _SECOND),
        keys=pa.schema([("number", pa.int64()), ("name", pa.string()), ("ratio", pa.float64())]),
        inputs=inputs,
        expressions=tuple(inputs.names),
        aggregates=tuple(applicable(inputs)),
        time=pa.timestamp("us"),
    )
    count = 64
    numbers = np.arange(count)
    valid = pa.array(numbers % 7 != 0)
    values = pa.array(numbers)
    some = pa.array(
        [n if keep else None for n, keep in zip(numbers.tolist(), valid.to_pylist(), strict=True)]
    )
    columns = [
        pa.array(numbers * _SECOND // 4).cast(plan.time),
        pa.array(np.zeros(count, dtype=np.int32)),
        pa.array(numbers % 5),
        pa.array([f"name {n % 3}" for n in range(count)]),
        pa.array((numbers % 2).astype(np.float64)),
        some.cast(pa.float64()),
        values,
        some.cast(pa.int32()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=plan.batch_schema)
    with tempfile.TemporaryDirectory(prefix="icestream-warm-up-") as folder:
        settings = Settings(f"{folder}/checkpoint", f"{folder}/local", LEAST_QUOTA, shards=1)
        query = LocalQuery(plan, settings)
        query.feed([[batch.slice(0, count // 2)]])
        query.feed([[batch.slice(count // 2)]])
        query.flush()
        query.close()


if __name__ == "__main__":
    kernels()
