"""Tools for testing your own queries and operators; needs `pip install 'icestream[testing]'`.

`sources` generates random streams with crashes inside, `conformance` is the suite that every query
must pass, `simulated_disk` is a disk that crashes, and `moving_shards` moves shards between tasks
that share no disk.

To test an aggregate, a processor or an operator of yours, subclass `EveryQuery`, call the subclass
`Test...`, and define three methods: how the query is opened in a folder, which events it receives,
and which rows it must return for them. pytest then runs the query
through restarts between any two batches, lost arenas, moving shards, times before 1970 and gaps.

    from collections import defaultdict

    import pyarrow as pa

    from icestream import UserAggregate
    from icestream.operators.aggregates.aggregate import Aggregate
    from icestream.plan.nodes.queries import Plan, Source
    from icestream.plan.windows.grid import Windows
    from icestream.runtime.local import LocalQuery
    from icestream.runtime.version.settings import Settings
    from icestream.testing.conformance import EveryQuery
    from icestream.testing.sources import SECOND, batches_of, generate

    LENGTH = 10 * SECOND
    SPREAD = UserAggregate(
        lift=lambda x: (x, x),
        combine=lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
        lower=lambda state: state[1] - state[0],
        result=pa.int64(),
        title="spread",
    )


    class TestSpread(EveryQuery):
        plan = Plan.of(
            sources=(Source("events", slack=5 * SECOND),),
            windows=Windows(LENGTH, LENGTH),
            keys=pa.schema([("key", pa.int64())]),
            inputs=pa.schema([("x", pa.int64())]),
            expressions=("x",),
            aggregates=(Aggregate("user", "x", "spread", parameters=(SPREAD,)),),
            time=pa.timestamp("us", "UTC"),
        )

        def open(self, folder, *, shards=2):
            settings = Settings(
                root=str(folder / "checkpoint"),
                local=str(folder / "local"),
                budget=16 << 20,
                shards=shards,
            )
            return LocalQuery(self.plan, settings)

        def stream(self, seed, shape=None):
            return generate(self.plan, shape or self.shape(), seed)

        def check(self, tables, items):
            values = defaultdict(list)
            for batch in (b for splits in batches_of(items) for split in splits for b in split):
                times = batch["time"].cast(pa.int64()).to_pylist()
                keys, inputs = batch["k0"].to_pylist(), batch["x"].to_pylist()
                for time, key, x in zip(times, keys, inputs, strict=True):
                    values[time // LENGTH * LENGTH, key].append(x)
            expected = {window: max(each) - min(each) for window, each in values.items()}
            rows = pa.concat_tables(tables).flatten()
            starts = rows["window.start"].cast(pa.int64()).to_pylist()
            windows = zip(starts, rows["key"].to_pylist(), strict=True)
            found = list(zip(windows, rows["spread"].to_pylist(), strict=True))
            assert sorted(found) == sorted(expected.items())

Invariants:
1. The example above passes, and fails if the aggregate is wrong
   (`test_the_example_of_the_package_passes`, `test_the_example_notices_a_wrong_aggregate`).
2. Without the extra, the import fails and names what to install
   (`test_without_the_extra_the_import_says_what_to_install`).
"""

from __future__ import annotations

from importlib.util import find_spec

_MISSING = [name for name in ("hypothesis", "pytest") if find_spec(name) is None]
if _MISSING:
    _MESSAGE = (
        f"icestream.testing needs {' and '.join(_MISSING)}: run pip install 'icestream[testing]'"
    )
    raise ModuleNotFoundError(_MESSAGE, name=_MISSING[0])
