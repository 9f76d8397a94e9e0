from __future__ import annotations

import time
from pathlib import Path

import pytest

from icestream.demo.call_centre.generator import AgentInteractions
from icestream.demo.replay import Replay

STREAM = AgentInteractions(rate=100)


def test_oracle_at_full_speed_all_events_are_written(tmp_path: Path) -> None:
    replay = Replay(STREAM, tmp_path, 2_500, seconds=10)
    replay.start()
    replay.join(timeout=60)
    replay.check()
    assert replay.written == replay.events == 2_500
    assert replay.until == STREAM.begin + 25_000_000
    assert len(list(tmp_path.glob("*.parquet"))) == 3


def test_oracle_fast_forward_paces_event_time(tmp_path: Path) -> None:
    # 4 files of 10 s, 100 times faster than event time: 0.1 s each
    replay = Replay(STREAM, tmp_path, 4_000, seconds=10, fast_forward=100)
    began = time.monotonic()
    replay.start()
    while replay.is_alive():
        seen = replay.until
        assert seen - STREAM.begin <= (time.monotonic() - began) * 100 * 1_000_000
        time.sleep(0.01)
    assert replay.written == 4_000
    assert time.monotonic() - began >= 0.4


def test_stopped_early_it_leaves_whole_files(tmp_path: Path) -> None:
    replay = Replay(STREAM, tmp_path, 10_000, seconds=10, fast_forward=0.001)
    replay.start()
    replay.stop()
    replay.check()
    assert replay.written == 0
    assert list(tmp_path.glob("*.parquet")) == []


def test_crash_a_failed_replay_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    replay = Replay(STREAM, tmp_path / "file", 1_000, seconds=10)
    replay.start()
    replay.join(timeout=60)
    with pytest.raises(OSError, match="file"):
        replay.check()
