"""User-defined operators over the store: versions, lost arenas, and little memory."""

from __future__ import annotations

import tempfile
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from icestream.operators.process.operator import UserDefined
from icestream.state.groups.options import StoreOptions
from tests.fixtures.group_space import GroupSpace
from tests.oracles.process import (
    OPS,
    PAYLOAD,
    Batch,
    InputRow,
    Scripted,
    changes_of_steps,
    counted,
    simulate,
)


def life(seed: int, batches: int, groups: int, unit: int) -> list[Batch]:
    """Return batches of two chunks each, in time order; instants are multiples of a unit."""
    random = np.random.default_rng(seed)
    made: list[Batch] = []
    for number in range(batches):
        start = 20 * number
        times = np.sort(random.integers(start, start + 25, 60)).tolist()
        steps = [
            InputRow(
                int(random.integers(1, groups)), time * unit, str(random.choice(OPS)), a * unit
            )
            for time, a in zip(times, random.integers(0, 10, 60).tolist(), strict=True)
        ]
        made.append(([steps[:30], steps[30:]], (start + 20) * unit))
    return made


@settings(max_examples=15)
@given(
    st.integers(0, 1000),
    st.sampled_from(["log", "evict"]),
    st.lists(st.booleans(), min_size=5, max_size=5),
    st.sampled_from([None, 1, 20]),
)
def test_crash_state_and_timers_come_back_from_the_log(
    seed: int, durability: Any, lost: list[bool], ttl: int | None
) -> None:
    batches = life(seed, len(lost), 30, 1 if ttl is None else 500)
    one = UserDefined(Scripted(ttl), "user long", PAYLOAD)
    made: Counter[tuple[Any, ...]] = Counter()
    returned = 0
    with tempfile.TemporaryDirectory() as folder:
        space = GroupSpace(folder, one.synopses, StoreOptions(durability, block_words=4))
        watermark = 0
        for (chunks, after), lose in zip(batches, lost, strict=True):
            with space.version(after) as store:
                for chunk in chunks:
                    store.begin(watermark)
                    changes = changes_of_steps(chunk)
                    made += counted(one.on_changes(0, changes, store, watermark))
                    store.eviction.evict(store.eviction.candidates())
                store.begin(after)
                made += counted(one.on_watermark(store, after))
                returned += store.statistics["returned"]
            watermark = after
            if lose and durability == "log":
                space.lose_arena()
    assert made == simulate(batches, None if ttl is None else ttl * 1000)
    assert returned
