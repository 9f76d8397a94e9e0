from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icestream.operators.lifetimes.counted_intervals import CountedIntervals, TimeSegments, revised

EVENTS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 2),
        st.integers(0, 9),
        st.integers(1, 6),
        st.sampled_from([-1, 1, 2]),
    ),
    max_size=12,
)
Rows = list[tuple[int, int, int, int, int]]
Held = Counter[tuple[int, int, int]]


def stretches(rows: Rows) -> CountedIntervals:
    columns = np.array([(o, k, le, le + size, n) for o, k, le, size, n in rows], dtype=np.int64)
    return CountedIntervals(*columns.reshape(-1, 5).T)


def rows_of(found: CountedIntervals) -> Rows:
    columns = (found.owner, found.kind, found.le, found.re, found.count)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def held(found: CountedIntervals) -> Held:
    """Return how many of each kind are alive in each group at each instant."""
    counts: Held = Counter()
    for owner, kind, le, re, count in rows_of(found):
        for instant in range(le, re):
            counts[owner, kind, instant] += count
    return Counter({key: count for key, count in counts.items() if count})


@given(EVENTS)
def test_oracle_levelled_events_count_the_same_at_every_instant(events: Rows) -> None:
    before = stretches(events)
    after = before.levelled()
    assert held(after) == held(before)
    assert after.count.all()
    ends = {(owner, kind, re): count for owner, kind, _, re, count in rows_of(after)}
    for owner, kind, le, _, count in rows_of(after):
        assert ends.get((owner, kind, le)) != count
    assert sum(len(range(le, re)) for _, _, le, re, _ in rows_of(after)) == len(held(after))


@given(EVENTS)
def test_oracle_levelled_events_may_keep_their_cuts(events: Rows) -> None:
    before = stretches(events)
    after = before.levelled(cut=True)
    assert held(after) == held(before)
    for owner, kind, le, re, _ in rows_of(after):
        inside = [e for e in rows_of(before) if e[:2] == (owner, kind)]
        assert not any(le < edge < re for event in inside for edge in event[2:4])


@given(EVENTS)
def test_oracle_consolidated_events_keep_their_lifetimes(events: Rows) -> None:
    before = stretches(events)
    expected: Counter[tuple[int, ...]] = Counter()
    for *event, count in rows_of(before):
        expected[tuple(event)] += count
    found = {tuple(event): count for *event, count in rows_of(before.consolidated())}
    assert found == {event: count for event, count in expected.items() if count}


@given(EVENTS, EVENTS, st.integers(0, 12))
def test_oracle_revisions_leave_the_past_alone(shown: Rows, answer: Rows, watermark: int) -> None:
    before = stretches([(o, k, le, size, 1) for o, k, le, size, _ in shown]).levelled()
    ahead = stretches([(o, k, le, size, 1) for o, k, le, size, _ in answer])
    ahead = ahead.levelled().since(watermark)
    after = revised(before, ahead, watermark)
    past = {key: count for key, count in held(before).items() if key[2] < watermark}
    assert held(after) == Counter({**past, **held(ahead)})
    emitted = rows_of(after.and_(before.negative()).consolidated())
    kept = {tuple(event): count for *event, count in rows_of(before)}
    assert all(kept[tuple(event)] >= -count for *event, count in emitted if count < 0)


@given(EVENTS)
def test_oracle_segments_have_the_totals_of_their_events(events: Rows) -> None:
    levelled = stretches(events).levelled()
    segments = TimeSegments.of(levelled)
    expected: Counter[tuple[int, int]] = Counter()
    for (owner, _, instant), count in held(levelled).items():
        expected[owner, instant] += max(0, count)
    totals = segments.totals(levelled)
    for owner, le, total in zip(
        segments.owner.tolist(), segments.le.tolist(), totals.tolist(), strict=True
    ):
        assert total == expected[owner, le]
    first, last = segments.spans(levelled)
    assert (segments.le[first] == levelled.le).all()
    assert (segments.le[last] == levelled.re).all()
