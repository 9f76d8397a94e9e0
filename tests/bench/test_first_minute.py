from __future__ import annotations

from pathlib import Path

from bench.first_minute import EVENTS, judge, shows_rows
from bench.registry import Size


def test_a_query_that_did_not_run_is_no_measurement() -> None:
    demo = {"events": EVENTS[Size.FULL], "first_rows_seconds": 9.0, "seconds": 26.0}
    bars = judge({"demo": demo, "first_batch_seconds": {"sessions": None, "top": 2.5}})
    assert [bar.holds for bar in bars] == [True, False, False, True]
    small = {**demo, "events": EVENTS[Size.SMALL]}
    assert len(judge({"demo": small, "first_batch_seconds": {"top": 3.5}})) == 1


def test_first_rows_are_those_of_the_log(tmp_path: Path) -> None:
    assert not shows_rows(tmp_path)
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    (log / "0").write_text("v1")
    assert not shows_rows(tmp_path)
    (log / "1").write_text('v1\n{"path":"file:///out/part-0.parquet","size":1}')
    assert shows_rows(tmp_path)
