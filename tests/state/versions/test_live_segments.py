from __future__ import annotations

import math
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import DamageError
from icestream.core.times import INFINITY, MINUS_INFINITY
from icestream.state.files import Files
from icestream.state.log.format import SegmentInfo
from icestream.state.versions import live_segments
from icestream.state.versions.commits import (
    BASE,
    EVENTS,
    NO_SHARD,
    SEGMENTS,
    Commit,
    LiveSegment,
    VersionStore,
)
from icestream.state.versions.live_segments import LiveSegments, live_at
from icestream.state.versions.manifests import MANIFESTS
from icestream.state.versions.ownership import Owner
from icestream.testing.simulated_disk import Crash, CrashMode, SimulatedDisk
from tests.oracles.live_segments import survivors

EVERY = 5


def segment(
    ordinal: int, shard: int = 0, version: int = 1, lifetime: str = "panes", **rest: Any
) -> LiveSegment:
    expiry, begins = rest.get("expiry", INFINITY), rest.get("begins")
    name = f"{ordinal:010d}-{ordinal + 7:016x}.seg"
    info = SegmentInfo(ordinal, name, 10 + ordinal, 1, expiry, ordinal)
    return LiveSegment(shard, version, lifetime, info, begins, rest.get("shared", False))


def by_name(live: Any) -> list[LiveSegment]:
    return sorted(live, key=lambda each: (each.shard, each.info.ordinal))


class History:
    """Random versions of a checkpoint, committed as a driver does."""

    def __init__(self, seed: int, files: Files) -> None:
        self.dice = np.random.default_rng(seed)
        self.store = VersionStore(files, "checkpoint")
        self.shards = int(self.dice.integers(1, 9))
        self.bases = (0,) * self.shards
        self.horizon = self.ordinal = self.version = 0
        self.live = LiveSegments()
        self.plain: tuple[LiveSegment, ...] = ()
        #: what is live at each version
        self.wanted: dict[int, tuple[LiveSegment, ...]] = {}
        #: files that no version from a number on needs
        self.ended: dict[str, int] = {}

    def commit(self, snapshots: float = 0.15) -> None:
        """Commit a version that adds, releases, expires and takes some snapshots."""
        dice = self.dice
        self.version += 1
        added = []
        for _ in range(dice.integers(0, 6)):
            shard = int(dice.integers(NO_SHARD, self.shards))
            fields: dict[str, Any] = {"expiry": self.horizon + int(dice.integers(0, 40))}
            lifetime = str(dice.choice(["panes", "rows", BASE, f"part-1.{BASE}"]))
            if shard == NO_SHARD:
                lifetime, fields["begins"] = EVENTS, int(dice.integers(0, 9))
            if lifetime == "rows":
                fields["expiry"] = INFINITY
            added.append(segment(self.ordinal, shard, self.version, lifetime, **fields))
            self.ordinal += 1
        bases = (self.version if dice.random() < snapshots else base for base in self.bases)
        self.bases = tuple(bases)
        self.horizon += int(dice.integers(0, 4))
        mine = [each for each in (*self.plain, *added) if each.shard != NO_SHARD]
        out = [each for each in mine if each.lifetime == "rows" and dice.random() < 0.1]
        made = Commit(
            self.version,
            self.version,
            added=tuple(added),
            bases=self.bases,
            horizon=self.horizon,
            released=tuple((each.shard, each.info.ordinal) for each in out),
        )
        self._create(made)

    def _create(self, made: Commit) -> None:
        before = {each.info.name for each in (*self.plain, *made.added)}
        self.plain = survivors(self.plain, made)
        ended = self.live.advance(made)
        made, replaced = self.live.write(self.store, made)
        self.store.create(made)
        after = {each.info.name for each in self.plain}
        segments = f"{SEGMENTS}/"
        assert {each.path.removeprefix(segments) for each in ended} == before - after
        self.ended |= {each.path: each.version for each in (*ended, *replaced)}
        self.wanted[made.version] = self.plain

    def divide(self, shards: int) -> None:
        """End a version with snapshots; the next one lists everything under other shards."""
        self.commit(snapshots=1)
        heirs = {
            old: [
                new
                for new in range(shards)
                if new * self.shards < (old + 1) * shards and old * shards < (new + 1) * self.shards
            ]
            for old in range(self.shards)
        }
        self.bases = (self.version,) * shards
        self.live = self.live.divided(heirs, self.bases)
        listed: dict[tuple[int, int], LiveSegment] = {}
        for each in self.plain:
            for heir in (NO_SHARD,) if each.shard == NO_SHARD else heirs[each.shard]:
                under = replace(each, shard=heir, shared=heir != NO_SHARD)
                listed.setdefault((heir, each.info.ordinal), under)
        self.plain = tuple(listed.values())
        self.shards = shards

    def restart(self) -> None:
        """Go on from what is on the disk."""
        if self.version:
            self.live = LiveSegments.at(VersionStore(self.store.files, "checkpoint"), self.version)


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_parity_live_segments_beside_a_plain_recount(seed: int) -> None:
    with mock.patch.object(live_segments, "MANIFEST_EVERY", EVERY):
        disk = SimulatedDisk()
        history = History(seed, disk)
        for _ in range(history.dice.integers(1, 6 * EVERY)):
            if history.version and history.dice.random() < 0.05:
                history.divide(int(history.dice.integers(1, 9)))
            history.commit()
            assert by_name(history.live.segments()) == by_name(history.plain)
            assert len(history.live) == len(history.plain)
            assert history.live.bytes == sum(each.info.bytes for each in history.plain)
            if history.dice.random() < 0.1:
                history.restart()
        store = VersionStore(disk, "checkpoint")
        for version, wanted in history.wanted.items():
            assert by_name(live_at(store, version)) == by_name(wanted)
            shards = {each.shard for each in wanted} | {0}
            one = int(history.dice.choice(sorted(shards)))
            mine = [each for each in wanted if each.shard == one]
            assert by_name(live_at(store, version, (one,))) == by_name(mine)
        # files that no manifest of the last version needs are known to have ended
        kept = {path.removeprefix("checkpoint/") for path in disk.files() if MANIFESTS in path}
        assert kept - history.ended.keys() == history.live.layer_files().keys()


def test_bounded_layers_of_a_manifest() -> None:
    with mock.patch.object(live_segments, "MANIFEST_EVERY", EVERY):
        disk = SimulatedDisk()
        store, live, written = VersionStore(disk, "checkpoint"), LiveSegments(), 0
        for version in range(1, 2001):
            added = tuple(segment(2 * version + n, 0, version) for n in range(2))
            commit = Commit(version, 0, added=added, bases=(0,))
            live.advance(commit)
            commit, gone = live.write(store, commit)
            for each in commit.manifests:
                assert len(each.layers) <= math.log2(2 * version) + 1
            for path in gone:
                disk.unlink(f"checkpoint/{path.path}")
            new = [path for path in disk.files() if f"/{version:012d}-" in path]
            written += sum(len(disk.read(path)) for path in new)
            assert version - live.needs_commits_from < EVERY
    # a segment of 52 bytes is written to a layer about log2(4000 / 10) times
    assert written < 4000 * 52 * 9


def test_what_expires_in_many_shards_is_returned_in_turns() -> None:
    live, shards = LiveSegments(), 512
    added = tuple(segment(n, n, expiry=5) for n in range(shards))
    live.advance(Commit(1, 0, added=added, bases=(0,) * shards))
    ended = [live.advance(Commit(v, 0, bases=(0,) * shards, horizon=5)) for v in range(2, 11)]
    assert [len(each) for each in ended] == [64] * 8 + [0]
    names = {each.path.removeprefix(f"{SEGMENTS}/") for some in ended for each in some}
    assert names == {each.info.name for each in added}


def test_damage_in_a_layer_is_named() -> None:
    disk = SimulatedDisk()
    store, live = VersionStore(disk, "checkpoint"), LiveSegments()
    first = Commit(64, 0, added=(segment(3, version=64),), bases=(0,))
    live.advance(first)
    store.create(live.write(store, first)[0])
    (path,) = (path for path in disk.files() if MANIFESTS in path)
    for place in range(len(disk.read(path))):
        disk.flip(path, place, 1 << place % 8)
        with pytest.raises(DamageError, match=path):
            live_at(store, 64, (0,))
        disk.flip(path, place, 1 << place % 8)
    assert len(live_at(store, 64, (0,))) == 1
    disk.unlink(path)
    with pytest.raises(DamageError, match=path):
        live_at(store, 64, (0,))


@pytest.mark.parametrize("mode", ["drop", "tear", "keep"])
def test_crash_a_version_has_its_layers_or_does_not_exist(mode: CrashMode) -> None:
    def run(disk: SimulatedDisk) -> None:
        store, live = VersionStore(disk, "checkpoint"), LiveSegments()
        made = Commit(1, 0, added=(segment(3, 1),), bases=(0, 0))
        live.advance(made)
        store.create(live.write(store, made)[0])

    whole = SimulatedDisk()
    run(whole)
    assert any(MANIFESTS in path for path in whole.files())
    for step in range(1, whole.steps + 1):
        disk = SimulatedDisk(crash_at=step, tear=step)
        with pytest.raises(Crash):
            run(disk)
        store = VersionStore(disk.after_crash(mode), "checkpoint")
        if store.latest() is not None:
            assert live_at(store, 1) == (segment(3, 1),)


def test_a_signed_commit_that_lacks_a_shard_is_damage_that_is_named() -> None:
    store = VersionStore(SimulatedDisk(), "checkpoint")
    store.create(Commit(1, 0, live=(segment(1, 1),), bases=(0, 1)))
    store.create(Commit(2, 0, bases=(0,)))
    with pytest.raises(DamageError, match=f"{2:012d}"):
        live_at(store, 2, (1,))


def test_a_missing_commit_is_damage_that_is_named() -> None:
    store = VersionStore(SimulatedDisk(), "checkpoint")
    for version in (1, 2, 3):
        store.create(Commit(version, 0, bases=(0,)))
    path = store.path(2)
    store.files.unlink(path)
    with pytest.raises(DamageError, match=path):
        live_at(store, 3)


def test_a_missing_commit_is_named_as_its_owner_wrote_it() -> None:
    store = VersionStore(SimulatedDisk(), "checkpoint")
    for owner in range(3):
        store.take(Owner.here(f"owner {owner}"))
        store.create(Commit(owner + 1, 0, bases=(0,), epoch=store.epoch))
    for version in (1, 2):
        other = VersionStore(store.files, "checkpoint")
        path = other.path(version)
        data = store.files.read(path)
        store.files.unlink(path)
        assert VersionStore(store.files, "checkpoint").path(version) == path
        store.files.put(path, data)


def test_a_list_of_an_earlier_release_is_where_manifests_begin() -> None:
    store = VersionStore(SimulatedDisk(), "checkpoint")
    listed = (segment(1, 0), segment(2, 1, lifetime=BASE), segment(3, NO_SHARD, begins=5))
    store.create(Commit(1, 0, live=listed, added=listed, bases=(0, 0)))
    store.create(Commit(2, 0, bases=(0, 0), released=((NO_SHARD, 1),)))
    live = LiveSegments.at(store, 2)
    assert by_name(live.segments()) == by_name(listed[1:])
    for version in range(3, 70):
        made = Commit(version, 0, bases=(0, 0), horizon=MINUS_INFINITY)
        live.advance(made)
        store.create(live.write(store, made)[0])
        assert live.needs_commits_from == (1 if version < 65 else 63)
    for version in (2, 40, 69):
        assert by_name(live_at(store, version)) == by_name(listed[1:])
