from __future__ import annotations

import io
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from examples.advertising import demo as module
from examples.advertising.answers import AdVerdict, AnswerTotals, checked
from examples.advertising.demo import demo
from examples.advertising.generator import AdEvents
from examples.advertising.offline import Rules
from icestream.core.errors import DefinitionError

HOUR = 3_600_000_000


@pytest.mark.slow
@pytest.mark.spark
def test_oracle_the_demo_ends_with_what_the_offline_model_says(tmp_path: Path) -> None:
    output = io.StringIO()
    home = tmp_path / "demo"
    console = Console(file=output, width=140)
    arguments = {"events": 6_000, "ads": 4, "keywords": 20, "asking": 20}
    code = demo(**arguments, keep=home, console=console)  # type: ignore[arg-type]
    text = output.getvalue()
    assert code == 0, text

    events = pq.read_table(home / "events")
    assert events.num_rows == 6_000
    reported = AnswerTotals()
    reported.take(pq.read_table(home / "results"))
    verdict = checked(reported, events, Rules(), HOUR, most=50)
    assert verdict.wrong == ()
    assert verdict.numbers > 500
    (bot,) = AdEvents(users=600, ads=4, keywords=20).bot_users().tolist()
    last = max(events["time"].cast("int64").to_pylist())
    assert bot in reported.bots(last)
    assert f"1: {bot}" in text
    assert "agrees" in text
    asked, user = reported.requests()[-1]
    best = max(reported.scores(user, asked).values())
    assert f"{best:.1%}" in next(line for line in text.splitlines() if f" {user} │" in line)


@pytest.mark.slow
@pytest.mark.spark
def test_a_difference_is_reported_and_no_file_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differing(*_: object) -> AdVerdict:
        return AdVerdict(1, 0, 1, ("user 1 is no bot",))

    monkeypatch.setattr(module, "checked", differing)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    output = io.StringIO()
    console = Console(file=output, width=140)
    assert demo(events=1_500, ads=2, keywords=5, asking=5, console=console) == 1
    assert "finds 1 mistakes" in output.getvalue()
    assert "differs from the offline model: user 1 is no bot" in output.getvalue()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_with_something_in_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(DefinitionError, match="is not empty"):
        demo(keep=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_arguments_that_make_no_demo_are_refused() -> None:
    with pytest.raises(DefinitionError, match="at least 1 event"):
        demo(events=0)
    with pytest.raises(DefinitionError, match="asking must be at least 1"):
        demo(asking=0)
    with pytest.raises(DefinitionError, match="cannot read 'much' as a size"):
        demo(memory="much")
    with pytest.raises(DefinitionError, match="cannot read 'often' as an interval"):
        demo(refresh="often")
    with pytest.raises(DefinitionError, match="at least 2 users, 1 ad"):
        demo(ads=0)
