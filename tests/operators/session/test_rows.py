from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.operators.folding.fold import ID_HIGH_COLUMN, ID_LOW_COLUMN
from icestream.operators.session.rows import Sessions, fragments_of, portions, united
from icestream.operators.session.spec import SessionSpec
from icestream.plan.windows.session import Session
from icestream.state.keys import KeyCodec

KEYS = pa.schema([("name", pa.string()), ("number", pa.float64())])
AGGREGATES = (Aggregate("count", None, "n"), Aggregate("sum", "x0", "s"))


def spec_of(keys: pa.Schema = KEYS) -> SessionSpec:
    return SessionSpec(AGGREGATES, keys, pa.schema([("x0", pa.int64())]), Session(10))


def tuples(
    spec: SessionSpec, events: Sequence[tuple[str | None, float | None, int]]
) -> pa.RecordBatch:
    """Make events of (name, number, time), each with the time as its input."""
    names, numbers, times = zip(*events, strict=True)
    keys = pa.record_batch([pa.array(names, pa.string()), pa.array(numbers, pa.float64())], KEYS)
    id_high, id_low = KeyCodec(spec.keys).identify(keys.select(spec.keys.names))
    return pa.record_batch(
        [
            pa.array(times, pa.int64()),
            pa.array(id_high),
            pa.array(id_low),
            *keys.select(spec.keys.names).columns,
            pa.array(times, pa.int64()),
        ],
        names=["time", ID_HIGH_COLUMN, ID_LOW_COLUMN, *spec.keys.names, "x0"],
    )


def shown(sessions: Sessions) -> list[tuple[object, ...]]:
    """Return start, end, events, sum and key of each session."""
    rows = np.concatenate([sessions.rows[:, 2:5], sessions.rows[:, 6:7]], axis=1).tolist()
    keys = sessions.keys.to_pylist() or [{}] * len(rows)
    return sorted((*row, *key.values()) for row, key in zip(rows, keys, strict=True))


def test_events_become_the_sessions_they_make_on_their_own() -> None:
    spec = spec_of()
    events = [("b", 1.0, 25), ("a", 1.0, 0), ("a", 1.0, 21), ("a", 1.0, 10), ("b", 1.0, 14)]
    found = fragments_of(tuples(spec, events), 0, spec)
    assert shown(found) == [
        (0, 20, 2, 10, "a", 1.0),
        (14, 24, 1, 14, "b", 1.0),
        (21, 31, 1, 21, "a", 1.0),
        (25, 35, 1, 25, "b", 1.0),
    ]
    assert found.groups == 2


def test_keys_that_spark_takes_for_one_are_one_group() -> None:
    spec = spec_of()
    zeros = [(None, 0.0, 1), (None, -0.0, 2), (None, None, 3)]
    found = fragments_of(tuples(spec, zeros), 0, spec)
    assert sorted(map(repr, shown(found))) == [
        "(1, 12, 2, 3, None, 0.0)",
        "(3, 13, 1, 3, None, None)",
    ]


def test_merging_keeps_each_row_beside_its_key() -> None:
    spec = spec_of()
    dice = np.random.default_rng(1)
    runs, everything = [], []
    for _ in range(4):
        events = [(f"key {k}", None, int(t)) for k, t in dice.integers(0, 60, size=(80, 2))]
        everything += events
        runs.append(fragments_of(tuples(spec, events), 0, spec))
    at_once = fragments_of(tuples(spec, everything), 0, spec)
    pairwise = Sessions.none(spec)
    for run in runs:
        pairwise = pairwise.merged(run)
    for merged in (pairwise, united(runs, spec)):
        assert shown(merged) == shown(at_once)
        id_high, id_low = KeyCodec(KEYS).identify(merged.keys)
        assert (merged.id_high == id_high).all()
        assert (merged.rows[:, 1].view(np.uint64) == id_low).all()


@pytest.mark.parametrize("keys", [KEYS, pa.schema([])])
def test_bytes_give_back_the_sessions_they_were_made_of(keys: pa.Schema) -> None:
    spec = spec_of(keys)
    events = [("a", 1.0, 0), (None, 2.0, 100), ("c", None, 200)]
    sessions = fragments_of(tuples(spec, events), 0, spec)
    for part in (sessions, sessions.between(1, 3), sessions.between(1, 1), Sessions.none(spec)):
        again = Sessions.from_bytes(part.to_bytes(), len(part), spec)
        assert again.keys.num_rows == len(again) == len(part)
        assert shown(again) == shown(part)
        assert again.keys.schema == (part.keys.schema if len(keys) else again.keys.schema)


def test_groups_that_share_half_of_their_identity_stay_apart() -> None:
    spec = spec_of(pa.schema([]))
    batch = pa.record_batch(
        [
            pa.array([5, 3, 9], pa.int64()),
            pa.array([7, 7, 7], pa.uint64()),
            pa.array([2, 1, 2], pa.uint64()),
            pa.array([5, 3, 9], pa.int64()),
        ],
        names=["time", ID_HIGH_COLUMN, ID_LOW_COLUMN, "x0"],
    )
    assert shown(fragments_of(batch, 0, spec)) == [(3, 13, 1, 3), (5, 19, 2, 14)]


@pytest.mark.parametrize("size", [1, 500, 10**6])
def test_portions_are_the_same_events_in_batches_of_a_size(size: int) -> None:
    spec = spec_of()
    batch = tuples(spec, [(f"{n}", None, n) for n in range(90)])
    cut = list(
        portions([batch.slice(0, 3), batch.slice(3, 0), batch.slice(3, 60), batch[63:]], size)
    )
    assert pa.concat_batches(cut).equals(batch)
    assert len(cut) == {1: 90, 10**6: 1}.get(size, len(cut))
    assert all(part.nbytes < 2 * size + 200 for part in cut)


def test_sessions_without_their_keys_are_refused() -> None:
    spec = spec_of()
    found = fragments_of(tuples(spec, [("a", 1.0, 0), ("b", 1.0, 5)]), 0, spec)
    payload = found.to_bytes()
    assert shown(Sessions.from_bytes(payload, 2, spec)) == shown(found)
    short = Sessions(found.exact, found.keys.slice(1)).to_bytes()
    with pytest.raises(ValueError, match="2 sessions have 2 rows and 1 keys"):
        Sessions.from_bytes(short, 2, spec)
