from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.registry import Size
from bench.safety.soak import KILLS, Round, differences, grown, instants_of, one_round, report, told


def _changes(rows: list[tuple[int, int, int, int]]) -> pa.Table:
    micros = pa.timestamp("us", "UTC")
    lifetimes = [{"start": start, "end": end} for start, end, _, _ in rows]
    kind = pa.struct([("start", micros), ("end", micros)])
    return pa.table(
        {
            "lifetime": pa.array(lifetimes, kind),
            "user": [user for *_, user, _ in rows],
            "change": pa.array([change for *_, change in rows], pa.int32()),
        }
    )


def test_a_row_that_is_missing_or_there_twice_is_a_difference(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    pq.write_table(pa.table({"key": [1, 2, 2], "x": [0.1, 0.2, 0.2]}), one)
    pq.write_table(pa.table({"key": [2, 1, 1], "x": [0.2, 0.1, 0.1]}), other)
    assert differences("call centre", [one], [one]) == (3, 0)
    assert differences("call centre", [one], [other]) == (3, 2)


def test_what_is_so_does_not_depend_on_how_it_is_reported() -> None:
    whole = _changes([(0, 10, 7, 1), (0, 5, 8, 1)])
    in_parts = _changes([(0, 4, 7, 1), (4, 10, 7, 1), (0, 9, 8, 1), (0, 9, 8, -1), (0, 5, 8, 1)])
    instants = instants_of(whole)
    assert told("recommender", whole, instants).total() == 2
    assert told("recommender", whole, instants) == told("recommender", in_parts, instants)
    other = _changes([(0, 10, 7, 1)])
    assert told("recommender", whole, instants) != told("recommender", other, instants)


def test_the_report_is_a_page_with_every_round() -> None:
    sizes = [9] * 4 + [1] * 4 + [2] * 4 + [7] * 4
    samples = [(at / 2, size << 20, 7 << 20, at // 4) for at, size in enumerate(sizes)]
    done = Round("call centre", 1, 3.0, 10, 0, 4, 1, "", samples, samples)
    failed = Round("market", 2, failure="ended with 1: <the log>")
    page = report({"rounds": [{**vars(each), "growth": each.growth} for each in (done, failed)]})
    assert "ended with 1: &lt;the log&gt;" in page
    assert "call centre" in page
    assert "data:image/png;base64," in page
    assert done.growth == 2
    assert grown(samples[:5]) is None


@pytest.mark.slow
@pytest.mark.spark
def test_crash_an_app_that_is_tormented_loses_nothing(tmp_path: Path) -> None:
    done = one_round("integration", 1, tmp_path)
    assert done.rows > 1000
    assert done.differences == 0
    assert done.kills <= KILLS[Size.FULL]
