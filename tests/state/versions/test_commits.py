from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import CheckpointError, DamageError, IcestreamError, StorageError
from icestream.core.times import MINUS_INFINITY
from icestream.state.log.format import SegmentInfo
from icestream.state.versions.commits import (
    BASE,
    MANIFEST_EVERY,
    Commit,
    LiveSegment,
    VersionStore,
    last_manifest,
    survivors,
)
from icestream.state.versions.ownership import Place
from icestream.testing.simulated_disk import Crash, CrashMode, SimulatedDisk

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "commits.md"
MODES: tuple[CrashMode, ...] = ("drop", "tear", "keep")


def info(ordinal: int, expiry: int = 100) -> SegmentInfo:
    return SegmentInfo(ordinal, f"{ordinal:010d}-{ordinal:016x}.seg", 10, 1, expiry, ordinal)


def commit(version: int, **fields: object) -> Commit:
    plain = Commit(version, version - 1, bases=(0,), decisions={"flush": False})
    return replace(plain, **fields)  # type: ignore[arg-type]


def path(version: int) -> str:
    return f"checkpoint/commits/{version:012d}.json"


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_the_worked_example_of_the_page_is_what_the_code_writes() -> None:
    (program,) = code_blocks("python")
    disk = SimulatedDisk()
    exec(compile(program, str(PAGE), "exec"), {"files": disk})
    plan, takeover, version = code_blocks("text")
    assert disk.read("checkpoint/plan.json").decode() == plan
    for place, shown in ((Place(0, 1), takeover), (Place(1, 1), version)):
        body, seal, _ = shown.rsplit("\n", 2)
        written = disk.read(f"checkpoint/commits/{place.name}").decode()
        assert written == body.replace("\n", "") + "\n" + seal + "\n"


def test_the_page_names_every_field_of_a_commit() -> None:
    text = PAGE.read_text()
    assert all(f"\n| {name} |" in text for name in commit(1).to_json())


def test_a_commit_reads_back_as_it_was_written() -> None:
    store = VersionStore(SimulatedDisk(), "checkpoint")
    added = (LiveSegment(0, 1, "panes", info(3)), LiveSegment(0, 1, BASE, info(4, 2**63 - 1)))
    written = commit(
        1,
        seen=(None, 7),
        routes=(0, 0),
        arenas=("a",),
        added=added,
        results=(info(0),),
        late=(info(1),),
        totals={"events": 3},
        live=added,
    )
    store.create(written)
    assert store.latest() == written
    assert store.versions() == [1]


def test_an_empty_checkpoint_has_no_version() -> None:
    store = VersionStore(SimulatedDisk(), "checkpoint")
    assert store.latest() is None
    assert store.versions() == []


def test_the_first_commit_of_a_version_stays() -> None:
    store = VersionStore(SimulatedDisk(), "checkpoint")
    store.create(commit(1, watermark=5))
    with pytest.raises(CheckpointError, match="another query runs on this checkpoint"):
        store.create(commit(1, watermark=6))
    assert store.load(1).watermark == 5


@pytest.mark.parametrize("mode", MODES)
def test_crash_a_commit_is_whole_or_absent(mode: CrashMode) -> None:
    whole = SimulatedDisk()
    VersionStore(whole, "checkpoint").create(commit(1))
    for step in range(1, whole.steps + 1):
        disk = SimulatedDisk(crash_at=step, tear=step)
        with pytest.raises(Crash):
            VersionStore(disk, "checkpoint").create(commit(1))
        assert VersionStore(disk.after_crash(mode), "checkpoint").latest() in (None, commit(1))
    survived = VersionStore(whole.after_crash(mode), "checkpoint")
    assert survived.latest() == commit(1)


def test_crash_a_version_that_was_seen_is_not_lost_later() -> None:
    # the process dies after the link and before the folder is synced; the next process sees the
    # version and will act on it, so it makes its name durable first: the power may fail too
    whole = SimulatedDisk()
    VersionStore(whole, "checkpoint").create(commit(1))
    link = next(n for n, (what, _) in enumerate(whole.trace, 1) if what == "link")
    disk = SimulatedDisk(crash_at=link + 1)
    with pytest.raises(Crash):
        VersionStore(disk, "checkpoint").create(commit(1))
    found = disk.after_crash("keep")
    assert VersionStore(found, "checkpoint").latest() == commit(1)
    assert ("sync folder", "checkpoint/commits") in found.trace


def test_damage_in_a_commit_is_named() -> None:
    disk = SimulatedDisk()
    store = VersionStore(disk, "checkpoint")
    store.create(commit(1, added=(LiveSegment(0, 1, BASE, info(3)),)))
    store.remember_plan({"range": "1 minute"})
    for file in (path(1), "checkpoint/plan.json"):
        for place in range(len(disk.read(file))):
            for mask in (1 << place % 8, 0xFF):
                disk.flip(file, place, mask)
                fresh = VersionStore(disk, "checkpoint")
                with pytest.raises(IcestreamError, match=file):
                    fresh.load(1) if file == path(1) else fresh.remember_plan({})
                disk.flip(file, place, mask)


def test_a_commit_under_the_name_of_another_is_damage() -> None:
    disk = SimulatedDisk()
    store = VersionStore(disk, "checkpoint")
    store.create(commit(1))
    disk.rename(path(1), path(2))
    with pytest.raises(DamageError, match="this is the commit of 1"):
        store.load(2)


def test_a_signed_commit_that_lacks_a_shard_is_damage_that_is_named() -> None:
    store = VersionStore(SimulatedDisk(), "checkpoint")
    store.create(commit(1, live=(LiveSegment(1, 1, BASE, info(1)),), bases=(0, 1)))
    store.create(commit(2, bases=(0,)))
    with pytest.raises(DamageError, match=path(2)):
        store.live(2)


def test_a_missing_commit_is_damage_that_is_named() -> None:
    store = VersionStore(SimulatedDisk(), "checkpoint")
    store.create(commit(1, live=()))
    store.create(commit(2))
    store.create(commit(3))
    store.files.unlink(store.path(2))
    with pytest.raises(DamageError, match=path(2)):
        store.live(3)


@pytest.mark.parametrize(("written", "age"), [(b"2", "older"), (b"4", "newer")])
def test_another_format_asks_for_another_release(written: bytes, age: str) -> None:
    disk = SimulatedDisk()
    store = VersionStore(disk, "checkpoint")
    store.create(commit(1))
    other = disk.read(path(1)).replace(b"\nicestream 3 ", b"\nicestream " + written + b" ")
    disk.unlink(path(1))
    disk.put(path(1), other)
    with pytest.raises(CheckpointError, match=f"reads 3: install the {age}"):
        store.load(1)


def test_the_plan_of_a_checkpoint_is_the_first_one() -> None:
    store = VersionStore(SimulatedDisk(), "checkpoint")
    assert store.remember_plan({"range": 1}) == {"range": 1}
    assert store.remember_plan({"range": 2}) == {"range": 1}


def test_a_full_disk_leaves_a_version_out_or_in_but_never_half() -> None:
    whole = SimulatedDisk()
    VersionStore(whole, "checkpoint").create(commit(1))
    for step in range(1, whole.steps + 1):
        disk = SimulatedDisk(fail_at=step, tear=step)
        with pytest.raises(StorageError, match="free space"):
            VersionStore(disk, "checkpoint").create(commit(1))
        assert VersionStore(disk, "checkpoint").latest() in (None, commit(1))


def test_one_commit_in_every_manifest_period_lists_all() -> None:
    listed = [v for v in range(1, 3 * MANIFEST_EVERY) if last_manifest(v) == v]
    assert listed == [1, 1 + MANIFEST_EVERY, 1 + 2 * MANIFEST_EVERY]


# each version: segments per shard and lifetime, whether shards take a snapshot, how far time goes
HISTORY = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, 60)), max_size=3),
        st.tuples(st.booleans(), st.booleans()),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=2 * MANIFEST_EVERY + 5,
)


@given(HISTORY)
@settings(max_examples=40)
def test_parity_live_segments_beside_a_plain_recount(
    history: list[tuple[list[tuple[int, bool, int]], tuple[bool, bool], int]],
) -> None:
    store = VersionStore(SimulatedDisk(), "checkpoint")
    live: tuple[LiveSegment, ...] = ()
    everything: list[LiveSegment] = []
    wanted: dict[int, set[int]] = {}
    bases, horizon, ordinal = [0, 0], 0, 0
    for version, (adds, snapshots, passed) in enumerate(history, 1):
        added = []
        for shard, base, lasts in adds:
            lifetime, expiry = (BASE, 2**63 - 1) if base else ("panes", horizon + lasts)
            added.append(LiveSegment(shard, version, lifetime, info(ordinal, expiry)))
            ordinal += 1
        bases = [version if taken else old for taken, old in zip(snapshots, bases, strict=True)]
        horizon += passed
        everything += added
        made = commit(version, added=tuple(added), bases=tuple(bases), horizon=horizon)
        live = survivors(live, made)
        store.create(store.with_manifest(made, live))
        panes = [each for each in everything if each.lifetime != BASE]
        wanted[version] = {each.info.ordinal for each in panes if each.info.expiry > horizon} | {
            each.info.ordinal
            for each in everything
            if each.lifetime == BASE and each.version >= bases[each.shard]
        }
    for version, ordinals in wanted.items():
        assert {each.info.ordinal for each in store.live(version)} == ordinals


def test_a_version_before_the_first_event_keeps_its_infinite_watermark() -> None:
    store = VersionStore(SimulatedDisk(), "checkpoint")
    store.create(commit(1))
    assert store.load(1).watermark == MINUS_INFINITY
