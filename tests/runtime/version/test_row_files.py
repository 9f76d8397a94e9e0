from __future__ import annotations

import os
from pathlib import Path

from icestream.runtime.local import LocalQuery
from icestream.runtime.version.settings import Settings
from icestream.state.versions.commits import RESULTS
from tests.fixtures.checkpoints import KINDS, events
from tests.fixtures.plans import QuickFiles


def test_the_shards_of_a_task_share_their_result_file(tmp_path: Path) -> None:
    plan = KINDS["groups"].plan()
    found = {}
    for shards in (1, 6):
        root = f"{tmp_path}/{shards}"
        settings = Settings(root, f"{root}-local", 64 << 20, shards)
        query = LocalQuery(plan, settings, QuickFiles())
        (made,) = query.driver.batch(0, events(plan, 0, 80, keys=30))
        assert len(made.results) == len(os.listdir(f"{root}/{RESULTS}")) == 1
        busy = sum(map(bool, made.progress["icestream"]["shards"]["resultRows"]))
        assert busy == shards
        found[shards] = sorted(map(repr, query.rows([made]).to_pylist()))
        query.close()
    assert found[1] == found[6]
