"""Segments of a join are merged: what is needed is written again, in few large records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from icestream.core.times import INFINITY
from icestream.operators.multi_join.spec import MultiJoinSpec
from tests.fixtures.multi_join_space import JoinSpace, sent

NUMBERS = pa.schema([("n", pa.int64())])
SPEC = MultiJoinSpec(0, (NUMBERS, NUMBERS), ((0, "n", "n0"), (1, "n", "n1")), 8)
ROW_BYTES = 56


def test_bounded_lasting_rows_keep_no_others_on_the_log(tmp_path: Path) -> None:
    """One stream lasts and has a row a version; the other has many, which soon end."""
    space = JoinSpace(str(tmp_path), SPEC, quota=1 << 21)
    rng, short, versions = np.random.default_rng(0), 200, 120
    found = []
    for version in range(versions):
        with space.version(10 * version) as join:
            begin = 10 * version
            lasting = [(int(rng.integers(0, 500)), begin, INFINITY, (version,))]
            ending = [(int(key), begin, begin + 30, (1,)) for key in rng.integers(0, 500, short)]
            list(join.on_changes(0, sent(NUMBERS, lasting)))
            list(join.on_changes(1, sent(NUMBERS, ending)))
            if version % 10 == 5:
                join.spill(np.arange(8))
            if version % 10 == 9:
                list(join.clean_up())
        found.append(space.log_bytes)
    live = ROW_BYTES * (versions + 4 * short)
    logged = ROW_BYTES * versions * short
    assert max(found[60:]) < 20 * ROW_BYTES * short + 3 * live < logged / 2


def test_bounded_the_index_of_tiny_batches(tmp_path: Path) -> None:
    """A join forever has two small records for each version, of which few are left."""
    space = JoinSpace(str(tmp_path), SPEC, quota=1 << 21)
    rng, versions = np.random.default_rng(1), 400
    for version in range(versions):
        with space.version() as join:
            for port in range(2):
                rows = [(int(key), 0, INFINITY, (version,)) for key in rng.integers(0, 5000, 3)]
                list(join.on_changes(port, sent(NUMBERS, rows)))
            if version % 50 == 49:
                join.spill(np.arange(8))
                list(join.clean_up())
    with space.version() as join:
        assert join.statistics["index_bytes"] < 64 * 2 * versions / 5
