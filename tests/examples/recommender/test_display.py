from __future__ import annotations

import io

from rich.console import Console, RenderableType

from examples.recommender.answers import RecommendedItem, Request
from examples.recommender.display import (
    RecommendationVerdict,
    RecommenderStatus,
    answer_table,
    live_page,
    plain_line,
    show_rate,
    summary_table,
)

DAY = 86_400_000_000


def drawn(what: RenderableType) -> str:
    output = io.StringIO()
    Console(file=output, width=130).print(what)
    return output.getvalue()


def status() -> RecommenderStatus:
    made = RecommenderStatus(ratings=900, requests=100, window="14 days")
    made.rated, made.asked = 600, 30
    made.left, made.returned = 1_234, 56
    made.progress.processed, made.progress.running = 630, 3.0
    made.progress.memory, made.progress.budget = 16 << 20, 64 << 20
    made.progress.groups = 4_321
    return made


def test_oracle_ratings_and_requests_have_speeds_of_their_own() -> None:
    assert show_rate(1, 0.0, "ratings") == "0 ratings/s"
    for text in (plain_line(status()), drawn(live_page(status()))):
        assert "200 ratings/s, 10 requests/s" in text
        assert "630 of 1,000" in text
        assert "16.0 MB of 64.0 MB" in text
        assert "1,234 times" in text
        assert "56" in text
        assert "4,321" in text


def test_before_the_first_batch_the_line_reports_what_is_written() -> None:
    made = RecommenderStatus(ratings=900, requests=100, window="14 days", written=400, elapsed=7.0)
    assert plain_line(made).startswith("    7 s  400 of 1,000 events written, none processed yet")


def test_oracle_the_table_shows_answers_best_first() -> None:
    made = status()
    best = [RecommendedItem(number, 5 - number / 10) for number in range(1, 8)]
    made.latest = [(Request(7, DAY), best), (Request(8, 0), best[:1])]
    lines = drawn(answer_table(made, most=1)).splitlines()
    (line,) = (line for line in lines if "1970" in line)
    assert "1970-01-02 00:00:00" in line
    assert "1 (4.90)  2 (4.80)  3 (4.70)  4 (4.60)  and 3 more" in line
    assert "14 days" in lines[0]
    assert "8 │ 1970-01-01 00:00:00 │ 1 (4.90) " in drawn(live_page(made))


def test_the_summary_says_how_many_answers_are_right() -> None:
    text = drawn(
        summary_table(
            status(), RecommendationVerdict(40, 3, 321, ("user 2 got 1 item",)), kept="here"
        )
    )
    assert "39 of 40 answers with 321 items" in text
    assert "3 of them" in " ".join(text.replace("│", " ").split())
    assert "left memory 1,234 times, came back 56 times" in text
    assert "600, each alive for 14 days" in text
    assert "here" in text
