from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.core.errors import CheckpointError, DamageError, StorageError
from icestream.state.files import LocalFiles
from icestream.state.versions.attempts import epoch_of, new_attempt
from icestream.state.versions.commits import COMMITS, Commit, VersionStore
from icestream.state.versions.ownership import Owner, Place, Standing, TakenOver
from icestream.testing.simulated_disk import SimulatedDisk

ROOT = "checkpoint"
ME = Owner("host-a", 1, 0.0, "first", 0, "one")
OTHER = Owner("host-b", 2, 0.0, "second", 1_767_225_600_000_000, "two")


def commit(version: int, epoch: int, watermark: int = 0) -> Commit:
    return Commit(version, version - 1, watermark, bases=(0,), epoch=epoch)


def committing(store: VersionStore, version: int) -> None:
    store.create(commit(version, store.epoch))


def test_a_takeover_or_a_commit_has_a_place() -> None:
    disk = SimulatedDisk()
    first = VersionStore(disk, ROOT)
    assert first.take(ME).epoch == 1
    committing(first, 1)
    second = VersionStore(disk, ROOT)
    taken = second.take(OTHER)
    assert (taken.epoch, taken.after) == (2, 1)
    reported = r"taken over by second \(process 2 on host-b, since 2026-01-01T00:00:00\+00:00\)"
    with pytest.raises(TakenOver, match=reported):
        committing(first, 2)
    with pytest.raises(TakenOver, match=reported):
        first.check_owner()
    second.check_owner()
    committing(second, 2)
    assert disk.list(f"{ROOT}/{COMMITS}") == [
        "000000000001-00000001.json",
        "000000000001.json",
        "000000000002-00000001.json",
        "000000000002-00000002.json",
    ]
    assert VersionStore(disk, ROOT).versions() == [1, 2]
    assert VersionStore(disk, ROOT).load(2).epoch == 2


def test_a_commit_that_wins_the_place_is_what_the_newcomer_goes_on_from() -> None:
    disk = SimulatedDisk()
    first, second = VersionStore(disk, ROOT), VersionStore(disk, ROOT)
    first.take(ME)
    look = second.look

    def late(*, damaged: bool = False) -> Standing:
        """Look, and let the owner commit before anything is done about it."""
        found = look(damaged=damaged)
        if found.version < 3:
            committing(first, found.version + 1)
        return found

    second.look = late  # type: ignore[method-assign]
    assert second.take(OTHER).after == 3
    with pytest.raises(TakenOver, match="goes on from version 3"):
        committing(first, 4)


def test_a_newcomer_that_never_wins_gives_up() -> None:
    disk = SimulatedDisk()
    first, second = VersionStore(disk, ROOT), VersionStore(disk, ROOT)
    first.take(ME)
    look = second.look

    def late(*, damaged: bool = False) -> Standing:
        found = look(damaged=damaged)
        committing(first, found.version + 1)
        return found

    second.look = late  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match="could not be taken over"):
        second.take(OTHER)


def test_of_many_that_take_over_each_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    root = str(tmp_path)
    begin = threading.Barrier(8)
    taken: list[int] = []
    committed: list[int] = []

    def run(number: int) -> None:
        store = VersionStore(LocalFiles(), root)
        begin.wait()
        for turn in range(5):
            found = store.take(Owner("host", number, 0.0, "racer", turn, f"{number}-{turn}"))
            taken.append(found.epoch)
            try:
                committing(store, found.after + 1)
                committed.append(found.after + 1)
            except TakenOver:
                pass

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 41))
    assert sorted(committed) == list(range(1, len(committed) + 1))
    assert VersionStore(LocalFiles(), root).versions() == sorted(committed)


class LostAnswers(SimulatedDisk):
    """Does what it is asked, and answers as if it had not been asked first."""

    def put(self, path: str, data: bytes) -> bool:
        return super().put(path, data) and False


def test_a_commit_whose_answer_was_lost_is_recognised_by_its_content() -> None:
    disk = LostAnswers()
    store = VersionStore(disk, ROOT)
    assert store.take(ME).epoch == 1
    committing(store, 1)
    committing(store, 1)
    with pytest.raises(CheckpointError, match="exists already"):
        store.create(commit(1, 1, watermark=5))
    assert VersionStore(disk, ROOT).versions() == [1]


def test_a_full_disk_at_any_step_of_a_takeover_leaves_the_versions() -> None:
    whole = SimulatedDisk()
    store = VersionStore(whole, ROOT)
    store.take(ME)
    committing(store, 1)
    before = whole.steps
    VersionStore(whole, ROOT).take(OTHER)
    for step in range(before + 1, whole.steps + 1):
        disk = SimulatedDisk(fail_at=step)
        store = VersionStore(disk, ROOT)
        store.take(ME)
        committing(store, 1)
        with pytest.raises(StorageError):
            VersionStore(disk, ROOT).take(OTHER)
        assert VersionStore(disk, ROOT).latest() == commit(1, 1)
        assert VersionStore(disk, ROOT).take(OTHER).after == 1


def test_damage_in_the_last_place_is_named() -> None:
    disk = SimulatedDisk()
    store = VersionStore(disk, ROOT)
    store.take(ME)
    committing(store, 1)
    store.take(OTHER)
    path = f"{ROOT}/{COMMITS}/{Place(1, 2).name}"
    for at in range(len(disk.read(path))):
        disk.flip(path, at)
        with pytest.raises((DamageError, CheckpointError), match=path):
            VersionStore(disk, ROOT).latest()
        disk.flip(path, at)
    assert VersionStore(disk, ROOT).latest() == commit(1, 1)


@pytest.mark.parametrize("kind", ["commit", "takeover"])
def test_an_owner_loses_to_a_repair_of_a_damaged_place(kind: str) -> None:
    """Nobody can tell a damaged commit from a damaged takeover: both next places are taken."""
    disk = SimulatedDisk()
    owner = VersionStore(disk, ROOT)
    owner.take(ME)
    committing(owner, 1)
    committing(owner, 2)
    if kind == "takeover":
        owner.take(OTHER)
    last = owner.look().last
    assert last is not None
    disk.flip(f"{ROOT}/{COMMITS}/{last.name}", 5)
    repair = VersionStore(disk, ROOT)
    with pytest.raises(DamageError):
        repair.take(ME)
    repair.take(ME, damaged=True)
    taken = repair.take(ME, after=1)
    assert taken.after == 1
    with pytest.raises(TakenOver):
        committing(owner, 3)
    committing(repair, 2)
    found = VersionStore(disk, ROOT)
    assert found.versions() == [1, 2]
    assert found.load(2).epoch == taken.epoch


def committing_late(loser: VersionStore, late: Commit) -> None:
    loser.create(late)
    loser.check_owner()


STEPS = st.lists(
    st.one_of(
        st.just(("commit", 0)),
        st.just(("take", 0)),
        st.tuples(st.just("back"), st.integers(0, 5)),
        st.tuples(st.just("forget"), st.integers(1, 4)),
        st.tuples(st.just("wake"), st.integers(0, 9)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_parity_the_sequence_beside_a_plain_replay(steps: list[tuple[str, int]]) -> None:
    disk = SimulatedDisk()
    owners = [VersionStore(disk, ROOT)]
    owners[0].take(ME)
    # the versions there are, with the watermark that tells who made them
    made: dict[int, int] = {}
    nexts = [1]
    for number, (what, amount) in enumerate(steps, 1):
        last = max(made, default=0)
        owner = owners[-1]
        if what == "commit":
            owner.create(commit(last + 1, owner.epoch, number))
            made[last + 1] = number
            nexts[-1] = last + 2
        elif what in ("take", "back"):
            after = max(min(made, default=0), last - amount)
            owners.append(VersionStore(disk, ROOT))
            taken = owners[-1].take(OTHER, after=after if what == "back" else None)
            assert taken.epoch == len(owners)
            made = {version: by for version, by in made.items() if version <= after}
            nexts.append(taken.after + 1)
        elif what == "forget":
            owner.check_owner()
            owner.forget_before(last - amount)
            made = {version: by for version, by in made.items() if version >= last - amount}
        elif amount < len(owners) - 1:
            # one that lost long ago wakes up: its commit fails, or counts for nothing
            loser = owners[amount]
            with pytest.raises(TakenOver):
                committing_late(loser, commit(nexts[amount], loser.epoch, number))
        found = VersionStore(disk, ROOT)
        assert found.versions() == sorted(made)
        assert {version: found.load(version).watermark for version in made} == made
        assert found.look().epoch == len(owners)
        assert found.look().version == max(made, default=0)


def test_names_report_epochs() -> None:
    assert epoch_of(f"0000000004-{new_attempt(7)}.seg") == 7
    assert epoch_of(f"000000000002-0-{new_attempt(0xFFFFFF)}.rows") == 0xFFFFFF
    assert epoch_of(f"000000000002-000001-{new_attempt(3)}-late.rows") == 3
    assert epoch_of("something else") == 0
    assert Place.of("000000000002-00000003.json") == Place(3, 2)
    assert Place.of("000000000002.json") == Place(0, 2)
    assert Place.of(".000000000002.json.tmp") is None
