from __future__ import annotations

import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from examples.recommender.answers import Recommendations, Request, wrong
from examples.recommender.demo import demo
from examples.recommender.offline import SimilarityModel
from examples.recommender.ratings import read_table
from examples.recommender.workload import REGISTER
from icestream.core.errors import DefinitionError, InputError

DAY = 86_400_000_000


@pytest.mark.spark
def test_oracle_the_demo_ends_with_right_answers(tmp_path: Path) -> None:
    output = io.StringIO()
    home = tmp_path / "demo"
    code = demo(
        count=240,
        items=5,
        requests=2,
        standing=0.05,
        window="20 days",
        keep=home,
        console=Console(file=output, width=140),
    )
    text = output.getvalue()
    assert code == 0, text
    events = pq.read_table(home / "events")
    standing = pc.sum(pc.equal(events.column("stream"), REGISTER)).as_py()
    assert 0 < standing < 20
    assert f"{40 + standing} of {40 + standing} answers" in text
    assert "Latest recommendations, of the ratings of 20 days" in text
    assert events.num_rows == 360
    answers = Recommendations()
    for path in (home / "results").glob("part-*.parquet"):
        answers.take(pq.ParquetFile(path).read())
    ratings = events.filter(pc.equal(events.column("stream"), 0))
    last = pc.max(ratings.column("time").cast(pa.int64())).as_py()
    model = SimilarityModel.at(ratings, last, 20 * DAY)
    found = answers.at(last)
    assert found
    for request, answer in found.items():
        assert wrong(answer, model, request.user, 5) is None
        assert request == Request(request.user, request.asked)


@pytest.mark.spark
def test_the_demo_reads_files_of_ratings(tmp_path: Path) -> None:
    path = tmp_path / "ratings.dat.gz"
    lines = [f"{n % 9}::{n * 7 % 13}::{1 + n % 5}::{1_000_000 + 60 * n}" for n in range(80)]
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines))
    output = io.StringIO()
    code = demo(ratings=path, count=60, console=Console(file=output, width=140))
    assert code == 0, output.getvalue()
    assert "60 ratings and 15 requests" in output.getvalue()
    assert read_table(path).num_rows == 80


def test_arguments_that_make_no_demo_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="at least 4 ratings"):
        demo(count=3)
    with pytest.raises(DefinitionError, match="cannot read 'much' as a size"):
        demo(memory="much")
    with pytest.raises(DefinitionError, match="standing must be a share"):
        demo(standing=2.0, count=100)
    with pytest.raises(InputError, match="cannot tell the format"):
        demo(ratings=tmp_path / "ratings.txt")
