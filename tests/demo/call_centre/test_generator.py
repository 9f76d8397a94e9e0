from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.core.errors import DefinitionError
from icestream.demo.call_centre.distributions import KEYS, TIMES, Time, service_factors
from icestream.demo.call_centre.generator import AgentInteractions
from icestream.demo.call_centre.schema import ARROW_SCHEMA

SECOND = 1_000_000
#: a day at 20 events a second
DAY = AgentInteractions(rate=20, seed=3)
DAY_EVENTS = 20 * 86_400


@pytest.fixture(scope="module")
def day() -> pa.Table:
    return DAY.table(0, DAY_EVENTS)


def numbers(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = table.column(name).cast(pa.int64()).to_numpy()
    return values


def test_oracle_rows_do_not_depend_on_the_pieces() -> None:
    stream = AgentInteractions(seed=7)
    whole = stream.batch(0, 5000)
    for first, count in ((0, 1), (1, 999), (1000, 4000), (4999, 1)):
        assert stream.batch(first, count).equals(whole.slice(first, count))
    assert stream.table(0, 200_000).slice(0, 5000).combine_chunks().to_batches()[0].equals(whole)


def test_another_seed_is_another_stream() -> None:
    assert (
        not AgentInteractions(seed=1).batch(0, 100).equals(AgentInteractions(seed=2).batch(0, 100))
    )


def test_no_events_are_a_batch_too() -> None:
    assert AgentInteractions().batch(5, 0).num_rows == 0


def test_nothing_is_null(day: pa.Table) -> None:
    assert day.schema.equals(ARROW_SCHEMA)
    assert all(column.null_count == 0 for column in day.columns)


@pytest.mark.parametrize("name", [name for name in KEYS if name != "agentId"])
def test_oracle_keys_come_with_their_shares(day: pa.Table, name: str) -> None:
    key = KEYS[name]
    values = numbers(day, name)
    counts = np.bincount(values, minlength=key.cardinality + 1)
    assert counts[0] == 0
    assert len(counts) == key.cardinality + 1
    # a request has the same key in all its steps: its number is what the error depends on
    requests = DAY_EVENTS / 28.8
    shares = key.shares()
    tolerance = 6 * np.sqrt(shares / requests)
    assert np.all(np.abs(counts[1:] / DAY_EVENTS - shares) <= tolerance)


def test_oracle_all_agents_work_a_third_of_the_day(day: pa.Table) -> None:
    agents = numbers(day, "agentId")
    assert len(np.unique(agents)) >= 0.98 * KEYS["agentId"].cardinality
    assert (agents.min(), agents.max()) == (1, KEYS["agentId"].cardinality)
    hour = (numbers(day, "timestamp") - DAY.begin) // (3600 * SECOND) % 24
    some = agents % 500 == 0
    for agent in np.unique(agents[some]):
        hours = np.unique(hour[agents == agent])
        # the hours of an agent lie within 9 hours of the clock that begin when the shift begins
        assert len(hours) <= 9


def test_the_site_of_an_agent_is_fixed(day: pa.Table) -> None:
    pairs = np.unique(numbers(day, "agentId") * 100 + numbers(day, "agentSite"))
    assert len(pairs) == len(np.unique(pairs // 100))


def test_oracle_calls_are_mostly_answered_where_they_come_in(day: pa.Table) -> None:
    same = (numbers(day, "agentSite") == numbers(day, "callSite")).mean()
    assert same == pytest.approx(0.7 + 0.3 / 20, abs=0.01)


def share_above(time: Time, seconds: float, factor: float = 1.0) -> float:
    """The share of rows, zeros included, whose value is `seconds` or more."""
    if seconds <= 0:
        return 1.0
    return (1 - time.zeros) * math.exp(-((seconds / (time.scale * factor)) ** time.shape))


@pytest.mark.parametrize("time", TIMES.values(), ids=lambda time: time.name)
def test_oracle_times_follow_their_distribution(day: pa.Table, time: Time) -> None:
    values = numbers(day, time.name)
    services = numbers(day, "serviceId") - 1
    assert values.min() >= 0
    shares = np.bincount(services) / len(services)
    factors = service_factors(time)
    for seconds in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200):
        expected = sum(
            share * share_above(time, seconds, factor)
            for share, factor in zip(shares, factors, strict=True)
        )
        assert (values >= seconds).mean() == pytest.approx(expected, abs=0.002)
    mean = sum(
        share * sum(share_above(time, seconds, factor) for seconds in range(1, 40_000))
        for share, factor in zip(shares, factors, strict=True)
    )
    assert values.mean() == pytest.approx(mean, rel=0.01)


def test_oracle_services_differ_by_their_factor(day: pa.Table) -> None:
    wait, service = numbers(day, "waitTime"), numbers(day, "serviceId")
    time = TIMES["waitTime"]
    for number in (1, 2, 3, 12):
        factor = float(service_factors(time)[number - 1])
        expected = sum(share_above(time, seconds, factor) for seconds in range(1, 40_000))
        assert wait[service == number].mean() == pytest.approx(expected, rel=0.06)


def test_oracle_the_rate_is_what_was_asked_for() -> None:
    stream = AgentInteractions(rate=1000, disorder=0)
    times = numbers(pa.Table.from_batches([stream.batch(0, 30_000)]), "timestamp")
    per_second = np.bincount((times - stream.begin) // SECOND)
    assert per_second.tolist() == [1000] * 30


def test_oracle_the_load_of_the_source() -> None:
    # 1,000 events a second are 3 million requests a day, and about 1,000 agents in 10 seconds
    stream = AgentInteractions()
    table = stream.table(5_000_000, 600_000)
    sessions = len(np.unique(numbers(table, "sessionId")))
    assert sessions / 600 * 86_400 == pytest.approx(3_000_000, rel=0.05)
    ten_seconds = table.slice(100_000, 10_000)
    assert 800 <= len(np.unique(numbers(ten_seconds, "agentId"))) <= 1_200


def test_oracle_the_steps_of_a_request_are_numbered() -> None:
    table = AgentInteractions(disorder=0).table(0, 100_000)
    session, leg = numbers(table, "sessionId"), numbers(table, "interactionLegId")
    last = numbers(table, "finalSegment")
    order = np.argsort(session, kind="stable")
    session, leg, last = session[order], leg[order], last[order]
    inside = session[1:] == session[:-1]
    assert np.all(leg[1:][inside] == leg[:-1][inside] + 1)
    assert np.all(last[:-1][inside] == 0)
    assert np.all(numbers(table, "start") <= numbers(table, "timestamp"))
    for name in ("serviceId", "agentId", "callSite", "mediaId", "direction", "instance", "start"):
        values = numbers(table, name)[order]
        assert np.all(values[1:][inside] == values[:-1][inside]), name


@pytest.mark.parametrize("disorder", [0, 1, 5 * SECOND, 90 * SECOND])
def test_bounded_disorder_stays_below_its_bound(disorder: int) -> None:
    times = numbers(AgentInteractions(rate=500, disorder=disorder).table(0, 100_000), "timestamp")
    behind = np.maximum.accumulate(times) - times
    assert behind.max() < max(disorder, 1)
    assert behind.max() >= 0.9 * disorder - 1


def test_oracle_with_swing_the_night_is_quiet_and_the_day_has_as_many() -> None:
    stream = AgentInteractions(rate=20, disorder=0, swing=0.8)
    times = numbers(stream.table(0, 2 * DAY_EVENTS), "timestamp") - stream.begin
    hours = np.bincount(times // (3600 * SECOND), minlength=48)
    assert len(hours) == 48
    assert np.all(np.diff(times) >= 0)
    assert hours[:24].sum() == DAY_EVENTS
    assert hours[4] == pytest.approx(0.2 * 20 * 3600, rel=0.05)
    assert hours[16] == pytest.approx(1.8 * 20 * 3600, rel=0.05)


def test_oracle_files_hold_the_stream_in_order(tmp_path: Path) -> None:
    stream = AgentInteractions(rate=100)
    files = list(stream.write(tmp_path, 3_500, seconds=10))
    assert [file.events for file in files] == [1000, 1000, 1000, 500]
    assert [file.until - stream.begin for file in files] == [
        10_000_000,
        20_000_000,
        30_000_000,
        35_000_000,
    ]
    assert [path.name for path in sorted(tmp_path.glob("*.parquet"))] == [
        file.path.name for file in files
    ]
    read = pa.concat_tables([pq.read_table(file.path) for file in files])
    assert read.combine_chunks().equals(stream.table(0, 3_500).combine_chunks())
    assert list((tmp_path / "_writing").iterdir()) == []


def test_files_are_told_apart_by_their_millisecond(tmp_path: Path) -> None:
    files = list(AgentInteractions(rate=1).write(tmp_path, 50, seconds=1))
    millis = [file.path.stat().st_mtime_ns // 1_000_000 for file in files]
    assert len(set(millis)) == 50
    assert millis == sorted(millis)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": 0}, "rate must be at least 1"),
        ({"disorder": -1}, "disorder must not be negative"),
        ({"swing": 1.0}, "swing must be from 0"),
    ],
)
def test_nonsense_is_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        AgentInteractions(**arguments)


def test_files_of_no_time_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="at least 1 second"):
        next(AgentInteractions().write(tmp_path, 10, seconds=0))
