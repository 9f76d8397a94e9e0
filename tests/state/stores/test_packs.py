from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from threading import current_thread, main_thread

import pytest

from icestream.core.errors import DamageError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.verify import verify
from icestream.runtime.local import LocalQuery
from icestream.runtime.version import retention, task
from icestream.state.files import LocalFiles
from icestream.state.stores.bucket import CHUNK, REQUESTS
from icestream.state.stores.packs import pack_of
from icestream.state.stores.store_files import StoreFiles
from icestream.state.versions.attempts import epoch_of, new_attempt
from icestream.state.versions.commits import RESULTS, SEGMENTS, VersionStore
from icestream.state.versions.live_segments import live_at
from tests.fixtures.object_store import in_memory
from tests.suites.crash_runs import Script, staged

ODD, EVEN = "000001c0ffee0001", "000001c0ffee0002"


@pytest.fixture
def root(tmp_path: Path) -> str:
    return f"memory://bucket{tmp_path}"


def files_in(folder: Path) -> StoreFiles:
    return StoreFiles(copies=str(folder), connect=in_memory)


def test_the_name_of_a_file_tells_its_pack() -> None:
    assert pack_of(f"s3://b/x/segments/0000000004-{ODD}.seg") == f"s3://b/x/segments/{ODD}.pack"
    assert pack_of(f"s3://b/x/results/000000000001-3-{ODD}.rows") == f"s3://b/x/results/{ODD}.pack"
    assert pack_of(f"s3://b/x/segments/0000000004-{EVEN}.seg") is None
    assert pack_of(f"s3://b/x/exchange/00000001/3-{ODD}.parcel") is None
    assert pack_of("s3://b/x/commits/000000000001-00000001.json") is None
    assert all(int(new_attempt(7, packed=True), 16) % 2 for _ in range(50))
    assert not any(int(new_attempt(7), 16) % 2 for _ in range(50))
    assert epoch_of(f"{ODD}.pack") == 1


def test_files_of_a_task_are_one_object(root: str, tmp_path: Path) -> None:
    files = files_in(tmp_path / "a")
    sizes = (0, 1, 1000, CHUNK, 3)
    contents = {
        f"{root}/segments/{n:010d}-{ODD}.seg": bytes([n]) * size for n, size in enumerate(sizes)
    }
    for path, data in contents.items():
        file = files.create(path)
        file.write(data)
        file.close()
    alone = files.create(f"{root}/segments/0000000009-{EVEN}.seg")
    alone.write(b"alone")
    alone.close()
    REQUESTS.clear()
    files.sync_files([*contents, f"{root}/segments/0000000009-{EVEN}.seg"])
    assert files.list(f"{root}/segments") == [f"0000000009-{EVEN}.seg", f"{ODD}.pack"]
    for folder, gets in (("a", 0), ("b", 2)):
        files = files_in(tmp_path / folder)
        REQUESTS.clear()
        for path, data in contents.items():
            opened = files.open(path)
            assert opened.size == len(data)
            assert opened.read_at(0, len(data) + 10) == data
            assert opened.read_at(len(data), 5) == b""
            opened.close()
            assert files.read(path) == data
            assert files.exists(path)
        assert REQUESTS["get"] == gets
        assert not files.exists(f"{root}/segments/0000000008-{ODD}.seg")
    some = f"{root}/segments/{2:010d}-{ODD}.seg"
    files.unlink(some)
    assert files.exists(some)
    files.unlink(f"{root}/segments/{ODD}.pack")
    assert not files.exists(some)
    with pytest.raises(FileNotFoundError):
        files.open(some)


def test_a_file_that_was_copied_into_a_store_is_found_by_its_own_name(
    root: str, tmp_path: Path
) -> None:
    files, path = files_in(tmp_path), f"{root}/segments/0000000004-{ODD}.seg"
    files.put(path, b"copied")
    assert files.open(path).read_at(0, 10) == b"copied"


@pytest.mark.parametrize("cut", [slice(0, 10), slice(0, 40), slice(0, -1)])
def test_a_damaged_pack_is_damage_of_its_file(root: str, tmp_path: Path, cut: slice) -> None:
    files, path = files_in(tmp_path / "a"), f"{root}/segments/0000000004-{ODD}.seg"
    file = files.create(path)
    file.write(b"0123456789")
    file.close()
    files.sync_files([path])
    pack = f"{root}/segments/{ODD}.pack"
    whole = files.read(pack)
    for damaged in (whole[cut], bytes([whole[0] ^ 1]) + whole[1:], whole[:30] + b"?" + whole[31:]):
        files.unlink(pack)
        assert files.put(pack, damaged)
        with pytest.raises(DamageError, match=f"{ODD}.pack"):
            files_in(tmp_path / str(len(damaged)) / str(damaged[0])).open(path)


def test_nothing_is_left_in_a_store_that_no_version_names(root: str, tmp_path: Path) -> None:
    script = Script(batches=14, shards=4)
    files = files_in(tmp_path / "copies")
    settings = replace(script.settings(str(tmp_path / "local")), root=root)
    with staged():
        query = LocalQuery(script.plan, settings, files, LocalFiles())
        most = []
        for action in script.actions:
            if action is None:
                (delivery,) = query.driver.flush()
            else:
                (delivery,) = query.driver.batch(action, script.inputs[action])
            most.append(delivery.progress["icestream"]["storageRequests"]["mostOfATask"])
        query.close()
    assert max(most) <= 2
    store = VersionStore(files, root)
    last = store.versions()[-1]
    assert last == 2 * retention.STORE_CLEANED_EVERY
    live = {each.info.name for each in live_at(store, last - 1)} | {
        each.info.name for each in store.load(last).added
    }
    rows = {info.name for v in (last - 1, last) for info in store.load(v).results}
    late = {info.name for v in (last - 1, last) for info in store.load(v).late}
    for folder, names in ((SEGMENTS, live), (RESULTS, rows | late)):
        holders = {(pack_of(f"/{name}") or f"/{name}")[1:] for name in names}
        assert set(files.list(f"{root}/{folder}")) == holders
    report = verify(Checkpoint(root, files))
    assert report.is_fine
    assert not report.ignored


def test_a_task_sends_what_its_first_shards_wrote_while_the_others_run(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, found = Script(batches=6, shards=6), {}
    sent: list[tuple[bool, int]] = []
    syncing = StoreFiles.sync_files

    def sync_files(self: StoreFiles, paths: Collection[str]) -> None:
        sent.append((current_thread() is main_thread(), len(paths)))
        syncing(self, paths)

    monkeypatch.setattr(StoreFiles, "sync_files", sync_files)
    for least in (4 << 20, 1):
        monkeypatch.setattr(task, "PART_BYTES", least)
        files = files_in(tmp_path / f"copies-{least}")
        settings = replace(script.settings(str(tmp_path / f"{least}")), root=f"{root}/{least}")
        with staged():
            query = LocalQuery(script.plan, settings, files, LocalFiles())
            deliveries = [
                *(query.driver.batch(n, script.inputs[n])[0] for n in range(6)),
                *query.driver.flush(),
            ]
            found[least] = [query.rows([each]).to_pylist() for each in deliveries]
            query.close()
        commits = [each.commit for each in deliveries]
        attempts = [len({each.info.name.rpartition("-")[2] for each in c.added}) for c in commits]
        requests = [each.progress["icestream"]["storageRequests"] for each in deliveries]
        # of six shards the first four are one part, and the last two are another
        assert max(attempts) == max(len(c.results) for c in commits) == (2 if least == 1 else 1)
        assert max(each["mostOfATask"] for each in requests) == (4 if least == 1 else 2)
        assert verify(Checkpoint(f"{root}/{least}", files)).is_fine
    assert found[1] == found[4 << 20]
    assert not any(in_main and paths for in_main, paths in sent)


@pytest.mark.parametrize("read", [False, True], ids=["open", "read before"])
def test_a_host_with_copies_of_a_pack_reads_on_when_it_is_unpacked(
    root: str, tmp_path: Path, read: bool
) -> None:
    here, there = files_in(tmp_path / "a"), files_in(tmp_path / "b")
    small, large = (f"{root}/segments/{n:010d}-{ODD}.seg" for n in (1, 2))
    for path, data in ((small, b"small"), (large, bytes(range(256)) * (CHUNK // 128))):
        file = here.create(path)
        file.write(data)
        file.close()
    here.sync_files([small, large])
    opened = there.open(large)
    if read:
        assert opened.read_at(0, 2) == b"\x00\x01"
    here.unpack([large])
    here.unlink(f"{root}/segments/{ODD}.pack")
    # the copy has the start of the pack, not its end
    assert opened.read_at(opened.size - 2, 9) == b"\xfe\xff"
    assert opened.read_at(2 * CHUNK - 256, 2) == b"\x00\x01"
    assert there.read(large) == here.read(large)
    with pytest.raises(FileNotFoundError):
        files_in(tmp_path / "c").open(small)


def test_bounded_dead_bytes_in_packs(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no pack may have more dead bytes than live ones
    monkeypatch.setattr(retention, "DEAD_BYTES", -(1 << 30))
    monkeypatch.setattr(retention, "SWEEP_EVERY", 4)
    script = Script(batches=48, shards=3, events=40)
    files = files_in(tmp_path / "copies")
    settings = replace(script.settings(str(tmp_path / "local")), root=root)
    calm = replace(script.settings(str(tmp_path / "other")), root=str(tmp_path / "calm"))
    expected, most = LocalQuery(script.plan, calm), 0
    with staged():
        query = LocalQuery(script.plan, settings, files, LocalFiles())
        for number in range(script.batches):
            rows = expected.feed(script.inputs[number])
            if number % 17 == 16:
                # another host: no copies, no arenas
                files = files_in(tmp_path / str(number))
                query = LocalQuery(script.plan, settings, files, LocalFiles())
            found = query.feed(script.inputs[number])
            assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, rows.to_pylist()))
            last = query.driver.last
            assert last is not None
            if not query.driver._versions._versions_since:
                store = query.driver.store
                named = [each for v in (-1, 0) for each in live_at(store, last.version + v)]
                named += [*last.added, *store.load(last.version - 1).added]
                live = {each.info.name: each.info.bytes for each in named}
                stored = files.sizes(f"{root}/{SEGMENTS}")
                assert sum(stored.values()) <= 2 * sum(live.values())
                most = max(most, sum(not name.endswith("pack") for name in stored))
    assert most
    report = verify(Checkpoint(root, files))
    assert report.is_fine
    assert not report.ignored
