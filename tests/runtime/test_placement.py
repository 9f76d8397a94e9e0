from __future__ import annotations

import os
from pathlib import Path

from icestream.runtime.placement import tidy_host
from icestream.state.arena import Arena, is_working
from icestream.state.budget import Budget


def test_a_host_keeps_the_arenas_of_its_shards_only(tmp_path: Path) -> None:
    arenas = str(tmp_path / "this-run" / "arenas")
    account = Budget(1 << 20).account("groups")
    for name in ("shard-0.v4.a", "shard-1.v3.b", "shard-1.v4.c", "shard-2.v5.d"):
        Arena.create(arenas, account).release(name)
    Arena.create(arenas, account)
    Arena.create(str(tmp_path / "earlier-run" / "arenas"), account).release("shard-0.v4.a")

    # version 5 is being made from 4, in which shard 1 was run on another host
    tidy_host(arenas, 5, ["shard-0.v4.a", "shard-1.v4.elsewhere", None])

    left = sorted(name for name in os.listdir(arenas) if not is_working(name))
    assert left == ["shard-0.v4.a", "shard-2.v5.d"]
    assert sum(map(is_working, os.listdir(arenas))) == 1
    assert os.listdir(tmp_path) == ["this-run"]
