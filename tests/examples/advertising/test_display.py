from __future__ import annotations

import io

from rich.console import Console, RenderableType

from examples.advertising.answers import AdVerdict, Weight
from examples.advertising.display import (
    AdvertisingStatus,
    ad_table,
    live_page,
    plain_line,
    score_table,
    summary_table,
)
from examples.advertising.query import BIAS


def drawn(what: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(what)
    return out.getvalue()


def a_status() -> AdvertisingStatus:
    status = AdvertisingStatus(1000, "6 hours", "1 hour", {1: {4}, 2: {9}})
    status.progress.processed = 400
    status.progress.running = 2.0
    status.progress.groups = 70
    status.progress.budget = 64 << 20
    status.cold, status.left, status.returned = 30, 45, 15
    status.bots, status.caught = {17}, {17, 3}
    status.weights = {
        (1, BIAS): Weight(0.0, 0.0),
        (1, 4): Weight(5.25, 1.5),
        (1, 6): Weight(2.0, 3.0),
        (2, BIAS): Weight(0.0, -3.0),
        (2, 6): Weight(-2.5, -1.0),
    }
    status.latest = [(1_767_225_600_000_000, 55, {1: 0.125, 2: 0.5})]
    return status


def test_oracle_the_table_shows_what_speaks_most_for_an_ad() -> None:
    text = drawn(ad_table(a_status(), most=5))
    first = next(line for line in text.splitlines() if "4* 5.2" in line)
    # the prior is a probability, the bias no keyword; the surest comes first, whatever its weight
    assert "50.0%" in first
    assert first.index("4* 5.2") < first.index("6 2.0")
    assert [cell.strip() for cell in first.split("│")[1:4]] == ["1", "50.0%", "2"]
    assert "6 -2.5" in text
    assert "and 1 more" in drawn(ad_table(a_status(), most=1))


def test_oracle_scores_are_shown_best_first() -> None:
    text = drawn(score_table(a_status(), most=5))
    line = next(line for line in text.splitlines() if "55" in line)
    assert "2026-01-01 00:00:00" in line
    assert "2: 50.0%  1: 12.5%" in line


def test_the_page_and_the_line_report_how_far_it_is() -> None:
    line = plain_line(a_status())
    assert "400 of 1,000 events, 200 events/s, 2 bots found" in line
    assert "groups: 70 in memory, 30 on disk only" in line
    page = drawn(live_page(a_status()))
    for part in ("400 of 1,000", "1 now", "2 found so far", "came back 15 times", "2: 50.0%"):
        assert part in page
    assert "What speaks" not in drawn(live_page(AdvertisingStatus(10, "6 hours", "1 hour", {})))


def test_the_summary_reports_what_the_offline_model_says() -> None:
    text = drawn(summary_table(a_status(), AdVerdict(20, 7, 99, ()), kept="there"))
    assert "2: 3, 17" in text
    assert "agrees: 99 numbers at 20 instants and in 7 answers" in text
    assert "there" in text
    text = drawn(summary_table(a_status(), AdVerdict(20, 7, 99, ("a", "b")), kept=None))
    assert "finds 2 mistakes" in text
