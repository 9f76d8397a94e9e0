from __future__ import annotations

from collections import Counter

import duckdb
import numpy as np
import pyarrow as pa

from icestream.operators.lifetimes.changes import LE, RE
from icestream.operators.multi_join.spec import MultiJoinSpec
from tests.fixtures.multi_join_space import sent
from tests.oracles.multi_join import events_of, joined

X = pa.schema([("k", pa.int64()), ("x", pa.int64())])
SPEC = MultiJoinSpec(0, (X,) * 3, ((0, "x", "a"), (1, "x", "b"), (2, "x", "c")), 4)


def test_oracle_agrees_with_duckdb() -> None:
    """A relational join with the greatest begin before the least end is the same bag."""
    rng = np.random.default_rng(0)
    ports = []
    for _ in range(3):
        keys, starts = rng.integers(0, 6, 40).tolist(), rng.integers(0, 20, 40).tolist()
        lengths, values = rng.integers(0, 9, 40).tolist(), rng.integers(0, 5, 40).tolist()
        rows = zip(keys, starts, lengths, values, strict=True)
        ports.append(sent(X, [(k, le, le + n, (k, x)) for k, le, n, x in rows]))
    a, b, c = (pa.Table.from_batches([changes]) for changes in ports)
    with duckdb.connect() as database:
        for name, table in (("a", a), ("b", b), ("c", c)):
            database.register(name, table)
        found = database.execute(
            f"SELECT greatest(a.{LE}, b.{LE}, c.{LE}) s, least(a.{RE}, b.{RE}, c.{RE}) e, "
            "a.x, b.x, c.x FROM a JOIN b ON a.k = b.k JOIN c ON c.k = a.k WHERE s < e"
        ).fetchall()
    answer = joined(SPEC, [events_of([changes]) for changes in ports])
    mine: Counter[tuple[int, ...]] = Counter()
    for event, count in answer.items():
        mine[(event.le, event.re, *event.payload)] += count
    assert mine == Counter(found)
    assert len(found) > 100
