from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.research.window_blocks.layout import PAGE
from bench.research.window_blocks.per_event import (
    Extent,
    SlidingAverages,
    SlidingTotals,
    weighted_layout,
)
from bench.research.window_blocks.repository import Repository, SharedRepository, WindowRepository
from bench.research.window_blocks.store import BlockStore, LogStore, SlotStore
from icestream.core.errors import DefinitionError, InputError
from tests.oracles.kernels.frames.blocks import slide_averages_reference

GROUPS = 3
events = st.lists(
    st.tuples(
        st.sampled_from((0, 0, 1, 1, 2, 25)),
        st.integers(0, GROUPS - 1),
        st.one_of(st.floats(1, 1_000), st.sampled_from((1e300, -1e300, 0.1))),
        st.integers(1, 50),
    ),
    min_size=1,
    max_size=80,
)
extents = st.builds(Extent, st.integers(1, 60), st.booleans())
Columns = tuple[
    npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float64], npt.NDArray[np.int32]
]


def columns(drawn: list[tuple[int, int, float, int]]) -> Columns:
    gaps, groups, values, weights = zip(*drawn, strict=True)
    return (
        np.cumsum(gaps, dtype=np.int64),
        np.array(groups, np.int32),
        np.array(values, np.float64),
        np.array(weights, np.int32),
    )


def a_store(folder: Path, mode: str) -> BlockStore:
    if mode == "slots":
        return SlotStore(str(folder), PAGE)
    return LogStore(str(folder), PAGE, 4 * PAGE)


def check(repository: Repository, watched: list[Extent], stream: Columns, cut: int) -> None:
    operator = SlidingAverages(repository, watched, GROUPS)
    times, groups, values, weights = stream
    parts = [slice(start, start + cut) for start in range(0, len(times), cut)]
    found = [operator.feed(times[p], groups[p], values[p], weights[p]) for p in parts]
    lengths = [extent.length for extent in watched]
    rows = [extent.rows for extent in watched]
    wanted = slide_averages_reference(*stream, lengths, rows)
    np.testing.assert_array_equal(np.concatenate(found, axis=1), wanted)


@given(
    drawn=events,
    extent=extents,
    factor=st.integers(1, 5),
    pool=st.integers(2, 4),
    on_the_way=st.integers(0, 2),
    mode=st.sampled_from(("log", "slots")),
    cut=st.integers(1, 80),
)
@settings(max_examples=60)
def test_oracle_a_result_per_event_over_one_window(
    drawn: list[tuple[int, int, float, int]],
    extent: Extent,
    factor: int,
    pool: int,
    on_the_way: int,
    mode: str,
    cut: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    repository = WindowRepository(
        weighted_layout(PAGE, factor),
        a_store(tmp_path_factory.mktemp("blocks"), mode),
        pool,
        behind=on_the_way,
        ahead=on_the_way,
    )
    try:
        check(repository, [extent], columns(drawn), cut)
    finally:
        repository.close()


@given(
    drawn=events,
    watched=st.lists(extents, min_size=1, max_size=4),
    factor=st.integers(1, 5),
    more=st.integers(0, 3),
    mode=st.sampled_from(("log", "slots")),
    cut=st.integers(1, 80),
)
@settings(max_examples=60)
def test_oracle_a_result_per_event_over_shared_windows(
    drawn: list[tuple[int, int, float, int]],
    watched: list[Extent],
    factor: int,
    more: int,
    mode: str,
    cut: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    repository = SharedRepository(
        weighted_layout(PAGE, factor),
        a_store(tmp_path_factory.mktemp("blocks"), mode),
        len(watched),
        len(watched) + 1 + more,
    )
    try:
        check(repository, watched, columns(drawn), cut)
    finally:
        repository.close()


def test_unfit_events_are_refused_before_any_is_taken(tmp_path: Path) -> None:
    repository = WindowRepository(weighted_layout(PAGE), LogStore(str(tmp_path), PAGE))
    totals = SlidingTotals(repository, [Extent(10)], 2)
    stream = columns([(5, 0, 1.0, 1), (1, 1, 2.0, 4)])
    totals.feed(*stream)
    with pytest.raises(InputError, match="event 0 of the batch has time 5"):
        totals.feed(*stream)
    with pytest.raises(InputError, match="event 1 of the batch has time 8 and group 7"):
        totals.feed(*columns([(8, 0, 1.0, 1), (0, 7, 1.0, 1)]))
    assert totals.totals.tolist() == [5]
    assert repository.tail[1] == 2
    repository.close()


def test_windows_and_extents_must_be_as_many(tmp_path: Path) -> None:
    repository = WindowRepository(weighted_layout(PAGE), LogStore(str(tmp_path), PAGE))
    with pytest.raises(DefinitionError, match="has 1 windows; got 2"):
        SlidingAverages(repository, [Extent(1), Extent(2)], 1)
    repository.close()


def test_a_window_of_no_length_is_refused() -> None:
    with pytest.raises(DefinitionError, match="at least"):
        Extent(0, rows=True)
