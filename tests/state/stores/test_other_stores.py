"""Google's and Azure's stores: the same promises as those of S3, by their own requests.

Azure is Azurite, Microsoft's emulator. Of Google's there is none for its XML interface, which is
that of S3 with other names: the S3 server answers, and the proxy translates the names.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from icestream.core.errors import StorageError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.verify import verify
from icestream.runtime.local import LocalQuery
from icestream.state.files import LocalFiles
from icestream.state.stores.bucket import CHUNK, open_bucket
from icestream.state.stores.store_files import StoreFiles
from icestream.state.versions.ownership import TakenOver
from tests.fixtures.object_store import BUCKET, AzureServer, ObjectStoreServer
from tests.suites.crash_runs import Script, staged

Place = tuple[str, dict[str, str]]


@pytest.fixture(
    scope="module",
    params=[
        "gs://{0}",
        pytest.param("az://{0}", marks=pytest.mark.slow),
        pytest.param("abfss://{0}@{1}.dfs.core.windows.net", marks=pytest.mark.slow),
    ],
)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    address = request.param.format(BUCKET, AzureServer.ACCOUNT)
    if address.startswith("gs"):
        store: ObjectStoreServer = request.getfixturevalue("object_store")
        yield address, store.google_options
        return
    program = AzureServer.program()
    if program is None:
        pytest.skip("Azurite is not installed, and npm cannot install it")
    server = AzureServer(program, tmp_path_factory.mktemp("azurite"))
    try:
        yield address, server.options
    finally:
        server.close()
        open_bucket.cache_clear()


def test_an_object_is_created_once(place: Place, tmp_path: Path) -> None:
    address, options = place
    bucket = open_bucket(address, tuple(options.items()))
    for number in range(3):
        won: list[bytes] = []
        begin = threading.Barrier(8)

        def race(content: bytes, number: int, begin: threading.Barrier, won: list[bytes]) -> None:
            begin.wait()
            if bucket.create(f"{tmp_path}/{number}", content):
                won.append(content)

        racers = [
            threading.Thread(target=race, args=(str(each).encode(), number, begin, won))
            for each in range(8)
        ]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert won == [bucket.get(f"{tmp_path}/{number}").data]


def test_paths_are_what_they_say(place: Place, tmp_path: Path) -> None:
    address, options = place
    files, root = StoreFiles(options, str(tmp_path / "copies")), f"{address}{tmp_path}/a b"
    large = random.Random(1).randbytes(CHUNK + 100) if address[:2] == "az" else b"large"
    contents = {
        "commits/1.json": b"1",
        "commits/2.json": b"",
        "commits/name=a%2Fb/3 ä.json": b"three",
        "commits2/4.json": b"4",
        "large": large,
    }
    for name, data in contents.items():
        file = files.create(f"{root}/{name}")
        file.write(data)
        file.close()
    files.sync_files([f"{root}/{name}" for name in contents])
    other = StoreFiles(options, str(tmp_path / "other"))
    assert other.list(f"{root}/commits") == ["1.json", "2.json", "name=a%2Fb"]
    assert other.list(root) == ["commits", "commits2", "large"]
    assert set(other.walk(root)) == {*contents}
    assert other.sizes(f"{root}/commits", "2", "3") == {"2.json": 0}
    for name, data in contents.items():
        assert other.read(f"{root}/{name}") == data
        opened = other.open(f"{root}/{name}")
        assert opened.size == len(data)
        assert opened.read_at(max(0, len(data) - 3), 9) == data[-3:]
        opened.close()
    assert not other.put(f"{root}/large", b"smaller")
    other.rename(f"{root}/commits/1.json", f"{root}/commits/5.json")
    assert other.exists(f"{root}/commits2")
    other.unlink(*(f"{root}/{name}" for name in contents), f"{root}/none")
    assert other.list(f"{root}/commits") == ["5.json"]
    assert other.list(root) == ["commits"]
    with pytest.raises(FileNotFoundError):
        other.open(f"{root}/commits2/4.json")


def test_a_query_runs_and_is_taken_over(place: Place, tmp_path: Path) -> None:
    address, options = place
    script = Script(batches=6, events=12, shards=2)
    calm = replace(script.settings(str(tmp_path / "calm-local")), root=str(tmp_path / "calm"))
    settings = replace(script.settings(str(tmp_path / "local")), root=f"{address}{tmp_path}/query")
    with staged():
        expected = LocalQuery(script.plan, calm)
        files = StoreFiles(options, str(tmp_path / "copies"))
        query = LocalQuery(script.plan, settings, files, LocalFiles())
        for number in range(script.batches):
            if number == 3:
                before, files = query, StoreFiles(options, str(tmp_path / "other"))
                query = LocalQuery(script.plan, settings, files, LocalFiles())
                with pytest.raises(TakenOver):
                    before.feed(script.inputs[number])
            rows, found = (each.feed(script.inputs[number]) for each in (expected, query))
            assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, rows.to_pylist()))
    assert verify(Checkpoint(settings.root, files)).is_fine


def test_refusals_name_the_object_and_no_secret(place: Place) -> None:
    address, options = place
    secrets = ("access_key", "service_account_key")
    bucket = open_bucket(address.replace(BUCKET, "nobody"), tuple(options.items()))
    bucket._patience = 0.05
    with pytest.raises((StorageError, FileNotFoundError)) as refused:
        bucket.put("a", [lambda: b"x"])
    assert "nobody" in str(refused.value)
    assert not any(options.get(name, "?") in str(refused.value) for name in secrets)
