from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import icestream as ice
from icestream.inspect.export import write_parquet
from icestream.inspect.reading import Reading, as_text
from icestream.testing.stories.checkpoints import make

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("kind", "kept"), [("tumbling", None), ("pairs", None), ("pairs", "0: left")]
)
def test_a_data_frame_has_the_rows_of_an_export(
    spark: SparkSession, kind: str, kept: str | None, tmp_path: Path
) -> None:
    root = make(kind, str(tmp_path))
    frame = ice.read_state(spark, root, kept=kept)
    target = tmp_path / "state.parquet"
    write_parquet(Reading(root, kept=kept), target)
    exported = pq.read_table(target)
    assert frame.columns == exported.schema.names
    assert Counter(map(as_text, frame.toArrow().to_pylist())) == Counter(
        map(as_text, exported.to_pylist())
    )
    older = ice.read_state(spark, root, version=4, kept=kept)
    assert older.columns == frame.columns
    assert older.toArrow() != frame.toArrow()


def test_a_data_frame_becomes_the_state(spark: SparkSession, tmp_path: Path) -> None:
    root, kept = make("pairs", str(tmp_path)), "0: left"
    before = ice.read_state(spark, root, kept=kept)
    rows = before.count()
    assert ice.write_state(before, root, kept=kept) == 5
    moved = before.withColumn("__le", before["__le"] - 1).where("user = 3")
    wanted = Counter(map(as_text, moved.toArrow().to_pylist()))
    assert ice.write_state(moved, root, kept=kept, others="keep") == 6
    after = ice.read_state(spark, root, kept=kept)
    mine = after.where("user = 3").toArrow().to_pylist()
    assert Counter(map(as_text, mine)) == wanted
    assert after.count() == rows
