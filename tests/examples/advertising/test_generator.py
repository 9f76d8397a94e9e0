from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.advertising.generator import (
    CLICK,
    COLUMNS,
    IMPRESSION,
    LONGEST,
    SCHEMA,
    SEARCH,
    AdEvents,
)
from icestream.core.errors import DefinitionError

SECOND = 1_000_000
HOUR = 3_600 * SECOND

STREAM = AdEvents(users=2_000, ads=10, keywords=50, bots=2)


def column(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = table.column(name).cast(pa.int64()).to_numpy()
    return found


@pytest.fixture(scope="module")
def day() -> pa.Table:
    return STREAM.between(STREAM.begin, STREAM.begin + 24 * HOUR)


def test_there_is_one_schema_of_events(day: pa.Table) -> None:
    assert list(COLUMNS) == SCHEMA.names
    assert day.schema == SCHEMA


def test_events_are_ordered_and_in_range(day: pa.Table) -> None:
    times, streams, subjects = (column(day, name) for name in ("time", "stream", "subject"))
    assert (np.diff(times) >= 0).all()
    assert times[0] >= STREAM.begin
    assert set(np.unique(streams)) == {IMPRESSION, CLICK, SEARCH}
    assert set(np.unique(subjects[streams == SEARCH])) == set(range(1, 51))
    assert set(np.unique(subjects[streams != SEARCH])) == set(range(1, 11))
    users = column(day, "user")
    assert users.min() >= 1
    assert users.max() <= 2_000


def test_oracle_events_do_not_depend_on_the_cuts(day: pa.Table) -> None:
    begin = STREAM.begin
    cuts = [0, 1, 7 * 60 * SECOND, HOUR, HOUR + 1, 5 * HOUR, 24 * HOUR]
    parts = [STREAM.between(begin + a, begin + b) for a, b in pairwise(cuts)]
    assert pa.concat_tables(parts).combine_chunks().equals(day.combine_chunks())
    assert STREAM.between(begin - HOUR, begin).num_rows == 0
    assert STREAM.between(begin + HOUR, begin + HOUR).num_rows == 0


def test_another_seed_is_another_stream(day: pa.Table) -> None:
    other = AdEvents(users=2_000, ads=10, keywords=50, bots=2, seed=2)
    begin = other.begin
    assert not other.between(begin, begin + HOUR).equals(STREAM.between(begin, begin + HOUR))
    assert other.bot_users().tolist() != STREAM.bot_users().tolist()


def test_oracle_a_few_users_are_behind_many_events(day: pa.Table) -> None:
    users = column(day, "user")
    people = users[~np.isin(users, STREAM.bot_users())]
    counts = np.sort(np.bincount(people, minlength=2_001))[::-1]
    assert counts[:300].sum() > 0.4 * counts.sum()
    assert (counts[:2_000] == 0).mean() > 0.1


def test_oracle_bots_click_and_search_very_often(day: pa.Table) -> None:
    users, streams = column(day, "user"), column(day, "stream")
    bots = STREAM.bot_users()
    assert len(bots) == 2
    for stream in (CLICK, SEARCH):
        counts = np.bincount(users[streams == stream], minlength=2_001)
        people = np.delete(counts, bots)
        assert counts[bots].min() > 2 * people.max()
    assert len(AdEvents(users=10_000).bot_users()) == 5
    assert len(AdEvents(users=100, bots=0).bot_users()) == 0


def test_oracle_keywords_of_an_ad_raise_its_clicks(day: pa.Table) -> None:
    wanted = STREAM.keywords_of_ads()
    searched: dict[int, list[tuple[int, int]]] = {}
    clicks: dict[tuple[int, int], list[int]] = {}
    shown = []
    rows = zip(*(column(day, name).tolist() for name in SCHEMA.names), strict=True)
    for time, stream, user, subject in rows:
        if stream == SEARCH:
            searched.setdefault(user, []).append((time, subject))
        elif stream == CLICK:
            clicks.setdefault((user, subject), []).append(time)
        else:
            shown.append((time, user, subject))
    bots = set(STREAM.bot_users().tolist())
    seen = {True: [0, 0], False: [0, 0]}
    for time, user, ad in shown:
        if user in bots:
            continue
        interested = any(
            time - LONGEST < at < time and keyword in wanted[ad - 1]
            for at, keyword in searched.get(user, [])
        )
        clicked = any(time < at < time + 300 * SECOND for at in clicks.get((user, ad), []))
        seen[interested][0] += 1
        seen[interested][1] += clicked
    assert seen[True][0] > 1_000
    rates = {kind: clicked / count for kind, (count, clicked) in seen.items()}
    assert rates[True] > 4 * rates[False]
    assert rates[False] == pytest.approx(0.03, abs=0.02)


def test_bounded_a_session_ends() -> None:
    # one session a day for each of two users: the day's last event belongs to one of them
    stream = AdEvents(users=2, sessions=1, bots=0)
    times = column(stream.between(stream.begin, stream.begin + 24 * 24 * HOUR), "time")
    since = (times - stream.begin) % (12 * HOUR)
    assert since.max() < LONGEST


def test_oracle_files_hold_the_stream_in_order(tmp_path: Path, day: pa.Table) -> None:
    files = list(STREAM.write(tmp_path, 5_000, seconds=700))
    assert sum(file.events for file in files) == 5_000
    assert [file.until - STREAM.begin for file in files] == [
        700 * SECOND * (number + 1) for number in range(len(files))
    ]
    read = pa.concat_tables([pq.read_table(file.path) for file in files])
    assert read.combine_chunks().equals(day.slice(0, 5_000).combine_chunks())
    for file in files:
        times = column(pq.read_table(file.path), "time")
        assert file.until - 700 * SECOND <= times.min() <= times.max() < file.until


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"users": 1}, "at least 2 users"),
        ({"ads": 0}, "1 ad"),
        ({"users": 10, "bots": 10}, "fewer than the 10 users"),
        ({"bots": -1}, "fewer than"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        AdEvents(**arguments)


def test_files_of_no_time_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="at least 1 second"):
        next(STREAM.write(tmp_path, 10, seconds=0))
