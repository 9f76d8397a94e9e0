"""What the clause in brackets says, and what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TextSpan
from icestream.core.units import format_interval, parse_interval
from icestream.plan.windows.frame import Frame, RowsSlide
from icestream.sql.relations.brackets import BracketWindow, read_brackets
from icestream.sql.relations.tree import NOW, Scan, TimeWindow, WindowTable
from icestream.sql.statements.tokens import statements

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def window(clause: str) -> BracketWindow:
    [text] = statements(f"FROM s [{clause}]")
    return read_brackets(text, TextSpan(8, 8 + len(clause))).window


def heading(clause: str) -> str:
    found = window(clause)
    assert found is not None
    return WindowTable(Scan("s", {"t": "c1_t"}, "c1_t"), found, "c1_t", "a", "b").heading


CLAUSES: dict[str, BracketWindow] = {
    "RANGE 1 HOUR SLIDE 1 SECOND": TimeWindow("hop", HOUR, SECOND),
    "RANGE 24 HOURS SLIDE 10 SECONDS": TimeWindow("hop", DAY, 10 * SECOND),
    "range 1 hour slide 5 rows": Frame(range=HOUR, slide=RowsSlide(5)),
    "RANGE 1 HOUR SLIDE 1 ROW": Frame(range=HOUR, slide=RowsSlide(1)),
    "TUMBLE 10 SECONDS": TimeWindow("tumble", 10 * SECOND, 10 * SECOND),
    "ROWS 100": Frame(rows=100, partition="stream"),
    "ROWS 100 SLIDE 10": Frame(rows=100, slide=RowsSlide(10), partition="stream"),
    "ROWS 100 SLIDE 10 ROWS": Frame(rows=100, slide=RowsSlide(10), partition="stream"),
    "ROWS 100 SLIDE 10 SECONDS": Frame(rows=100, slide=10 * SECOND, partition="stream"),
    "PARTITION BY k ROWS 3": Frame(rows=3),
    "PARTITION BY a, `b ``c` ROWS 3 SLIDE 2": Frame(rows=3, slide=RowsSlide(2)),
    "PARTITION BY a ROWS 3 SLIDE 1 MINUTE": Frame(rows=3, slide=MINUTE),
    "PARTITION BY a ROWS 3 RANGE 1 HOUR": Frame(rows=3, range=HOUR),
    "PARTITION BY a ROWS 3 RANGE 1 HOUR SLIDE 5": Frame(rows=3, range=HOUR, slide=RowsSlide(5)),
    "CUMULATE 1 DAY STEP 1 MINUTE": TimeWindow("cumulate", DAY, MINUTE),
    "SESSION 30 MINUTES": TimeWindow("session", 30 * MINUTE, 30 * MINUTE),
    "  RANGE\n 1 -- of the clock\n HOUR /* that is it */ ": Frame(range=HOUR),
    "NOW": NOW,
    "UNBOUNDED": None,
    "RANGE UNBOUNDED": None,
    "ROWS UNBOUNDED": None,
}


@pytest.mark.parametrize("clause", CLAUSES)
def test_clauses_say_which_window_it_is(clause: str) -> None:
    assert window(clause) == CLAUSES[clause]


@pytest.mark.parametrize(
    "clause",
    ["RANGE 1 HOUR", "ROWS 5", "PARTITION BY k ROWS 5", "PARTITION BY k ROWS 5 RANGE 1 DAY"],
)
def test_without_a_slide_every_event_gives_a_result(clause: str) -> None:
    found = window(clause)
    assert isinstance(found, Frame)
    assert found.slide is None
    assert heading(clause) == "time"


INTERVALS = {
    "1 HOUR": HOUR,
    "90 MINUTES": 90 * MINUTE,
    "1 HOUR 30 MINUTES": 90 * MINUTE,
    "1.5 HOURS": 90 * MINUTE,
    "INTERVAL '1' HOUR": HOUR,
    "INTERVAL 1 HOUR": HOUR,
    "INTERVAL '1 hour 30 minutes'": 90 * MINUTE,
    "'10 seconds'": 10 * SECOND,
    "10s": 10 * SECOND,
    "250 ms": SECOND // 4,
    "2 WEEKS": 14 * DAY,
}


@pytest.mark.parametrize("text", INTERVALS)
def test_intervals_may_be_written_in_many_ways(text: str) -> None:
    assert window(f"RANGE {text}") == Frame(range=INTERVALS[text])
    assert window(f"RANGE {text} SLIDE {text}") == TimeWindow(
        "tumble", INTERVALS[text], INTERVALS[text]
    )
    assert window(f"SESSION {text}") == TimeWindow("session", INTERVALS[text], INTERVALS[text])


@given(st.integers(1, 400 * DAY))
def test_intervals_read_as_everywhere_else(length: int) -> None:
    text = format_interval(length)
    assert window(f"RANGE {text.upper()}") == Frame(range=parse_interval(text))


@pytest.mark.parametrize(
    ("clause", "first"),
    [
        ("RANGE 1 HOUR SLIDE 1 SECOND", "window"),
        ("TUMBLE 1 HOUR", "window"),
        ("CUMULATE 1 DAY STEP 1 HOUR", "window"),
        ("SESSION 1 HOUR", "session_window"),
        ("RANGE 1 HOUR SLIDE 5 ROWS", "time"),
        ("ROWS 5 SLIDE 1 SECOND", "time"),
    ],
)
def test_the_window_names_the_first_column_of_its_rows(clause: str, first: str) -> None:
    assert heading(clause) == first


#: a clause, what is wrong with it, and the words the mark is under
BAD: dict[str, tuple[str, str]] = {
    "": ("the window is empty: write for example", ""),
    "RANGE NOW": ("RANGE is followed by an interval", "NOW"),
    "HOP 1 HOUR 1 SECOND": (r"written \[RANGE size SLIDE step\]", "HOP"),
    "RANGES 1 HOUR": ("got 'RANGES'; did you mean 'RANGE'", "RANGES"),
    "RANGE": ("RANGE is followed by an interval such as 10 SECONDS", ""),
    "RANGE 100": (r"100 needs a unit: .* a number of events is written \[ROWS 100\]", "100"),
    "RANGE 1 HUOR": ("cannot read '1 HUOR' as an interval", "1 HUOR"),
    "RANGE 1 MONTH": ("months and years have no fixed length", "1 MONTH"),
    "RANGE 0 SECONDS": ("RANGE must be positive", "0 SECONDS"),
    "RANGE 1 HOUR SLIDE": ("SLIDE is followed by an interval", ""),
    "RANGE 1 HOUR SLIDE 5": ("write SLIDE 5 SECONDS or SLIDE 5 ROWS", "5"),
    "RANGE 1 HOUR SLIDE 0 ROWS": ("SLIDE is followed by a number of events, 1 or more", "0"),
    "RANGE 1 HOUR SLIDE 2 HOURS": (r"slide further than their range \(1 hour\)", "2 HOURS"),
    "RANGE 1 HOUR SLYDE 1 SECOND": (
        "unexpected 'SLYDE' after the end of the window; did you mean 'SLIDE'",
        "SLYDE",
    ),
    "ROWS": ("ROWS is followed by a number of events", ""),
    "ROWS 0": ("1 or more", "0"),
    "ROWS 1.5": ("a number of events", "1.5"),
    "ROWS 10 SECONDS": ("unexpected 'SECONDS' after the end", "SECONDS"),
    "PARTITION k ROWS 10": ("PARTITION is followed by BY", "k"),
    "PARTITION BY ROWS 10": ("PARTITION BY is followed by columns", "ROWS"),
    "PARTITION BY k, ROWS 10": ("PARTITION BY is followed by columns", "ROWS"),
    "PARTITION BY k RANGE 1 HOUR": ("for a RANGE, use GROUP BY", "RANGE"),
    "PARTITION BY k ROWS 5 RANGE 1 HOUR SLIDE 1 MINUTE": ("SLIDE 10 ROWS", "1 MINUTE"),
    "PARTITION BY k": ("followed by ROWS and a number", ""),
    "CUMULATE 1 DAY": ("CUMULATE needs a step", ""),
    "CUMULATE 1 DAY STEP 7 HOURS": ("must divide the size, 1 day, evenly", "7 HOURS"),
    "SESSION 5": (r"5 needs a unit: write 5 SECONDS", "5"),
    "TUMBLE 1 HOUR SLIDE 1 HOUR": ("unexpected 'SLIDE' after the end", "SLIDE"),
}


@pytest.mark.parametrize("clause", BAD)
def test_clauses_that_say_nothing_are_refused_where_they_go_wrong(clause: str) -> None:
    message, words = BAD[clause]
    with pytest.raises(DefinitionError, match=message) as refused:
        window(clause)
    _, line, mark = str(refused.value).splitlines()
    start = mark.index("^")
    assert line[start : start + mark.count("^")] == (words or "]")
