from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from icestream.operators.folding.fields import Field, Layout
from icestream.operators.frames.layout import SharedLayout
from icestream.operators.frames.moving import suffix_stacks_of
from icestream.operators.grid.groups import ID_HIGH_END
from icestream.operators.grid.partitions import Partition
from icestream.state.arena import Arena
from icestream.state.budget import Budget


def test_suffixes_of_all_frames_are_lost_with_a_partition(tmp_path: Path) -> None:
    arena = Arena.create(str(tmp_path), Budget(1 << 20).account("groups"))
    layouts = [Layout.of((Field("min", "x0"),)), Layout.of((Field("max", "x0"),))]
    frames = SharedLayout.of_frames(layouts).frames
    facts: dict[str, Any] = {"low": 0, "high": ID_HIGH_END, "fronts": 0, "next": 0, "stale": False}
    partition = Partition(facts, arena, 0)
    for place, suffixes in enumerate(suffix_stacks_of(partition, arena, frames)):
        assert not suffixes.stale
        suffixes.stack.push(np.full((place + 1, 1), place))
        suffixes.flipped = 7 + place
        suffixes.note()
    again = suffix_stacks_of(partition, arena, frames)
    assert [suffixes.flipped for suffixes in again] == [7, 8]
    assert [suffixes.stack.pop(n + 1).tolist() for n, suffixes in enumerate(again)] == [
        [[0]],
        [[1]] * 2,
    ]
    partition.stale = True
    lost = suffix_stacks_of(partition, arena, frames)
    assert [(suffixes.stale, suffixes.stack.size) for suffixes in lost] == [(True, 0)] * 2
    # noted by none yet: they are still to be made
    assert all(suffixes.stale for suffixes in suffix_stacks_of(partition, arena, frames))
