from __future__ import annotations

import logging
import random
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from icestream.core.errors import DefinitionError, StorageError
from icestream.state.stores import bucket as buckets
from icestream.state.stores.bucket import REQUESTS, Bucket, open_bucket
from icestream.state.stores.store_files import StoreFiles
from icestream.state.versions.commits import Commit, VersionStore
from icestream.state.versions.ownership import Owner, TakenOver
from tests.fixtures.object_store import BUCKET, KEY, SECRET, ObjectStoreServer, in_memory


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(buckets, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(buckets, "LONGEST_PAUSE", 0.01)
    open_bucket.cache_clear()
    yield
    open_bucket.cache_clear()


@pytest.fixture
def bucket(object_store: ObjectStoreServer) -> Bucket:
    return open_bucket(f"s3://{BUCKET}", tuple(object_store.options.items()))


@pytest.fixture
def folder() -> str:
    return uuid.uuid4().hex


def test_one_of_sixteen_threads_creates_an_object(bucket: Bucket, folder: str) -> None:
    for number in range(5):
        won: list[bytes] = []
        begin = threading.Barrier(16)

        def race(content: bytes, number: int, begin: threading.Barrier, won: list[bytes]) -> None:
            begin.wait()
            if bucket.create(f"{folder}/{number}", content):
                won.append(content)

        racers = [
            threading.Thread(target=race, args=(str(each).encode(), number, begin, won))
            for each in range(16)
        ]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert won == [bucket.get(f"{folder}/{number}").data]


def test_faults_of_the_network_change_nothing(
    object_store: ObjectStoreServer, bucket: Bucket, folder: str
) -> None:
    dice, model = random.Random(4), dict[str, bytes]()
    with object_store.failing(0.3, 5) as faults:
        faults.delay = 0.01
        for step in range(80):
            name = f"{folder}/{dice.randint(0, 9)}"
            match dice.choice(["put", "create", "get", "list", "delete"]):
                case "put":
                    model[name] = str(step).encode()
                    bucket.put(name, [partial(model.__getitem__, name)])
                case "create":
                    created = bucket.create(name, f"new {step}".encode())
                    if name not in model:
                        model[name] = f"new {step}".encode()
                    else:
                        assert not created
                case "get" if name in model:
                    assert bucket.get(name, 1, 3).data == model[name][1:3]
                case "list":
                    found = sorted(f"{folder}/{each}" for each in bucket.names(folder))
                    assert found == sorted(model)
                case "delete":
                    bucket.delete([name])
                    model.pop(name, None)
        assert {name: bucket.get(name).data for name in model} == model
        assert all(faults.done[kind] for kind in faults.kinds)


def _owned(object_store: ObjectStoreServer, folder: str) -> VersionStore:
    store = VersionStore(StoreFiles(object_store.options), f"s3://{BUCKET}/{folder}")
    store.take(Owner.here("a test"))
    return store


def _commit(store: VersionStore, *arenas: str) -> Commit:
    return Commit(1, 0, epoch=store.epoch, arenas=arenas)


@pytest.mark.parametrize("script", [["lose"], ["lose", "503", "lose"], ["drop", "409"], ["409"]])
def test_a_commit_whose_answer_was_lost_is_ours(
    object_store: ObjectStoreServer, folder: str, script: list[str | None]
) -> None:
    store = _owned(object_store, folder)
    with object_store.failing(0) as faults:
        faults.script = list(script)
        store.create(_commit(store, "ours"))
        assert not faults.script
    assert store.load(1).arenas == ("ours",)


def test_a_commit_that_lost_to_a_takeover_is_told_so_whatever_is_lost(
    object_store: ObjectStoreServer, folder: str
) -> None:
    first, second = _owned(object_store, folder), _owned(object_store, folder)
    with object_store.failing(0) as faults:
        faults.script = ["lose", None, "503"]
        with pytest.raises(TakenOver, match="a test"):
            first.create(_commit(first))
    second.create(_commit(second))


def test_a_slow_store_fails_nothing(
    object_store: ObjectStoreServer, bucket: Bucket, folder: str
) -> None:
    with object_store.failing(1.0, 0, "delay") as faults:
        faults.delay = 0.3
        began = time.monotonic()
        assert bucket.create(f"{folder}/a", b"slow")
        assert bucket.get(f"{folder}/a").data == b"slow"
        assert time.monotonic() - began >= 0.6


def test_names_are_listed_and_deleted_in_batches(bucket: Bucket, folder: str) -> None:
    names = [f"{folder}/{number:03d}" for number in range(25)]
    for name in names:
        bucket.put(name, [])
    REQUESTS.clear()
    bucket.delete([*names, f"{folder}/none"])
    assert bucket.names(folder) == []
    assert REQUESTS == {"delete": 1, "list": 1}


def test_pauses_grow_and_differ(
    object_store: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(buckets, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(buckets, "LONGEST_PAUSE", 0.2)
    monkeypatch.setattr(buckets, "_RETRIES", {"max_retries": 0})
    opened = open_bucket(f"s3://{BUCKET}", tuple(object_store.options.items()))
    paused: list[float] = []
    monkeypatch.setattr(opened, "_sleep", paused.append)
    with object_store.failing(0) as faults:
        faults.script = ["503"] * 6
        opened.put(f"{folder}/a", [lambda: b"x"])
    most = [0.05, 0.1, 0.2, 0.2, 0.2, 0.2]
    assert all(m / 2 <= p <= m for p, m in zip(paused, most, strict=True))
    assert len(set(paused)) == len(paused)


def _impatient(object_store: ObjectStoreServer, **options: str) -> Bucket:
    found = open_bucket(f"s3://{BUCKET}", tuple((object_store.options | options).items()))
    found._patience = 0.05
    return found


_PERMANENT: dict[str, tuple[str, Callable[[Bucket], Any]]] = {
    "403": ("permission denied", lambda bucket: bucket.get("a")),
    "401": ("credentials were not accepted", lambda bucket: bucket.get("a")),
    "400": ("status 400 Fault", lambda bucket: bucket.put("a", [])),
    "503": ("status 503 Fault", lambda bucket: bucket.create("a", b"")),
    "drop": ("connection", lambda bucket: bucket.names("a")),
}


@pytest.mark.parametrize("fault", _PERMANENT)
def test_no_secret_is_in_errors_logs_or_texts(
    object_store: ObjectStoreServer, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    reason, act = _PERMANENT[fault]
    bucket = _impatient(object_store)
    with object_store.failing(1.0, 0, fault), pytest.raises(StorageError, match=reason) as refused:
        act(bucket)
    texts = [str(refused.value), caplog.text, repr(bucket), repr(StoreFiles(object_store.options))]
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    assert f"s3://{BUCKET}/a" in texts[0]
    assert "storage.*" in texts[0]
    assert not any(secret in text for secret in (KEY, SECRET) for text in texts)


def test_a_store_that_is_not_there_is_named(object_store: ObjectStoreServer) -> None:
    bucket = _impatient(object_store, endpoint="http://127.0.0.1:1")
    with pytest.raises(StorageError, match=r"s3://bucket/a: .*connection"):
        bucket.get("a")


def test_an_address_with_credentials_is_refused_without_them() -> None:
    with pytest.raises(DefinitionError, match="must not contain credentials") as refused:
        open_bucket(f"s3://{KEY}:{SECRET}@{BUCKET}", ())
    assert KEY not in str(refused.value)
    assert SECRET not in str(refused.value)


def test_an_unknown_option_is_named_without_its_value() -> None:
    with pytest.raises(DefinitionError, match=r"has no option storage\.nonsense") as refused:
        open_bucket(f"s3://{BUCKET}", (("nonsense", SECRET),))
    assert SECRET not in str(refused.value)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(DefinitionError, match="pip install obstore"):
        open_bucket(f"s3://{BUCKET}", ())


_HERE = "http://127.0.0.1:1"
_SIGNED = {"access_key": "c2VjcmV0"}


@pytest.mark.parametrize(
    ("address", "options", "kind", "config"),
    [
        ("s3a://b1", {"region": "eu-central-1"}, "S3Store", {"bucket": "b1"}),
        (
            "s3://b1",
            {"endpoint": _HERE, "connect_timeout": "3 seconds"},
            "S3Store",
            {"bucket": "b1", "endpoint": _HERE},
        ),
        ("gs://b2", {"skip_signature": "true"}, "GCSStore", {"bucket": "b2"}),
        (
            "az://c1",
            {"account_name": "me", "endpoint": _HERE, **_SIGNED},
            "AzureStore",
            {"container_name": "c1", "account_name": "me", "endpoint": _HERE},
        ),
        (
            "abfss://c2@me.dfs.core.windows.net",
            _SIGNED,
            "AzureStore",
            {"container_name": "c2", "account_name": "me"},
        ),
    ],
)
def test_stores_are_opened_by_their_addresses(
    address: str, options: dict[str, str], kind: str, config: dict[str, str]
) -> None:
    bucket = open_bucket(address, tuple(options.items()))
    store = bucket._store
    assert type(store).__name__ == kind
    assert {name: store.config.get(name) for name in config} == config
    # keys are whole: no part of the address goes in front of them a second time
    assert store.prefix is None
    assert ("allow_http" in store.client_options) == ("endpoint" in options)


@pytest.mark.parametrize(
    ("path", "address", "key"),
    [
        ("s3://bucket/a/b.log", "s3://bucket", "a/b.log"),
        ("gs://bucket/a b/c", "gs://bucket", "a b/c"),
        ("az://container/a/b", "az://container", "a/b"),
        (
            "abfss://container@me.dfs.core.windows.net/a/b",
            "abfss://container@me.dfs.core.windows.net",
            "a/b",
        ),
    ],
)
def test_the_prefix_of_a_location_is_the_beginning_of_its_keys(
    path: str, address: str, key: str, tmp_path: Path
) -> None:
    asked: list[str] = []

    def connect(address: str, options: tuple[tuple[str, str], ...]) -> Bucket:
        asked.append(address)
        return in_memory(f"{address}-of-{tmp_path}", options)

    files = StoreFiles({}, str(tmp_path), connect=connect)
    assert files.put(path, b"content")
    assert set(asked) == {address}
    assert in_memory(f"{address}-of-{tmp_path}", ()).get(key).data == b"content"
