"""Requests to one bucket of an object store, repeated until they succeed or patience is over.

Idea: `obstore` speaks to S3, Google Cloud Storage and Azure. A request that failed for a reason
that passes is made again, after a pause that doubles up to `LONGEST_PAUSE` and has a random length,
so that tasks do not come back all at once. A store that is slow or down for a while slows a query
and does not fail it.

Invariants:
1. Of several programs that create one object at the same moment exactly one wins
   (`test_one_of_sixteen_threads_creates_an_object`).
2. Requests that are dropped, refused for a while or whose answers are lost change no result
   (`test_faults_of_the_network_change_nothing`).
3. Error texts and logs contain names of objects and a reason, never what the store's library says:
   its texts contain addresses with tokens and answers with key ids
   (`test_no_secret_is_in_errors_logs_or_texts`).

Cost: one request for each call, for each `CHUNK` of a large object, and for each 1000 names listed
or deleted; `REQUESTS` counts them, `REPEATED` those that are made again.

Limits: creating an object over one that exists is decided by the store. A conditional request whose
answer is lost may fail when it is repeated: `create` then returns False although the object is its
own, and the caller compares the content.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from icestream.core.errors import DefinitionError, StorageError

#: the most bytes of one request
CHUNK = 8 << 20
#: parts of a large object that are sent at the same time
PARTS_AT_ONCE = 2
#: names that stores delete with one request
NAMES_AT_ONCE = 1000
#: seconds that a request may take, be repeated, and pause in between
TIMEOUT = 120.0
PATIENCE = 600.0
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 10.0
#: repetitions before they are logged
_QUIETLY = 3

#: requests made by this process, by kind
REQUESTS: Counter[str] = Counter()
#: those of them that the store had refused or not answered before
REPEATED: Counter[str] = Counter()

#: schemes of object stores, and the name that the library has for each
SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "abfs",
    "abfss": "abfss",
}
#: options of the connection; all others are the store's own
_CLIENT_OPTIONS = frozenset({
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
})  # fmt: skip
_SWITCHES = frozenset({"allow_http", "allow_invalid_certificates", "http1_only", "http2_only"})
#: what a store's answer may be quoted with
_STATUS = re.compile(r"status(?: code)?[^\w<]+([1-5][0-9]{2})\b")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_PASSING = frozenset({408, 409, 412, 425, 429})
_CAUSES = (
    ("dns error", "the host of the endpoint is unknown"),
    ("refused", "the connection was refused"),
    ("certificate", "the certificate of the endpoint was not accepted"),
    ("timed out", "the request timed out"),
    ("TimedOut", "the request timed out"),
    ("error sending request", "the connection failed"),
    ("Body", "the connection was lost"),
)

Result = TypeVar("Result")

_LOG = logging.getLogger(__name__)


class Found(NamedTuple):
    """A part of an object, and the number of bytes of the whole."""

    data: bytes
    size: int


class Bucket:
    """One bucket or container."""

    def __init__(
        self,
        address: str,
        store: Any,
        *,
        patience: float = PATIENCE,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Use a store of `obstore`; `address` names it in errors."""
        self._obstore = _library(address)
        self._address = address
        self._store = store
        self._patience = patience
        self._sleep = sleep
        self._dice = random.Random()

    def get(self, key: str, first: int = 0, last: int | None = None) -> Found:
        """Return the bytes from `first` to before `last`; FileNotFoundError without an object."""
        obstore = self._obstore
        options: Any = {} if last is None else {"range": (first, last)}

        def get() -> Found:
            try:
                found = obstore.get(self._store, key, options=options)
                return Found(bytes(found.bytes()), found.meta["size"])
            except obstore.exceptions.BaseError:
                # stores refuse to return a part that begins at or after the end
                if last is None or (size := obstore.head(self._store, key)["size"]) > first:
                    raise
                return Found(b"", size)

        return self.repeated("get", key, get)

    def create(self, key: str, data: bytes) -> bool:
        """Create an object exclusively; False if there is one, which may be ours."""
        obstore = self._obstore
        taken = (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError)

        def create() -> bool:
            try:
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except taken:
                if self._has(key):
                    return False
                # two requests at the same moment: neither may have won
                raise
            return True

        return self.repeated("put", key, create)

    def put(self, key: str, chunks: Sequence[Callable[[], bytes]]) -> None:
        """Write an object from the bytes that functions return, each at most `CHUNK`."""
        obstore = self._obstore

        def put() -> None:
            if len(chunks) <= 1:
                data = chunks[0]() if chunks else b""
                obstore.put(self._store, key, data, use_multipart=False)
                return
            REQUESTS["put"] += len(chunks) + 1
            every: Iterator[bytes] = (chunk() for chunk in chunks)
            obstore.put(
                self._store,
                key,
                every,
                use_multipart=True,
                chunk_size=CHUNK,
                max_concurrency=PARTS_AT_ONCE,
            )

        self.repeated("put", key, put)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; missing ones are fine."""
        obstore = self._obstore
        for first in range(0, len(keys), NAMES_AT_ONCE):
            some = list(keys[first : first + NAMES_AT_ONCE])
            try:
                self.repeated("delete", some[0], partial(obstore.delete, self._store, some))
            except FileNotFoundError:
                # some stores refuse what is not there
                if len(some) > 1:
                    for key in some:
                        self.delete([key])

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a folder, of objects and of folders."""
        obstore = self._obstore
        found: Any = self.repeated(
            "list", folder, lambda: obstore.list_with_delimiter(self._store, folder or None)
        )
        REQUESTS["list"] += len(found["objects"]) // NAMES_AT_ONCE
        paths = (*(each["path"] for each in found["objects"]), *found["common_prefixes"])
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def walk(self, folder: str, first: str = "", end: str | None = None) -> dict[str, int]:
        """Return the keys below a folder, from `first` to before `end`, with their bytes."""
        obstore = self._obstore

        def walk() -> dict[str, int]:
            found: dict[str, int] = {}
            # a store lists what comes after a key, so one that is just before `first` is asked for
            after = f"{first[:-1]}{chr(ord(first[-1]) - 1)}~" if first else None
            pages = obstore.list(self._store, folder, offset=after, chunk_size=NAMES_AT_ONCE)
            for number, page in enumerate(pages):
                REQUESTS["list"] += bool(number)
                for each in page:
                    if end is not None and each["path"] >= end:
                        return found
                    if each["path"] >= first:
                        found[each["path"]] = each["size"]
            return found

        return self.repeated("list", folder, walk)

    def exists(self, key: str) -> bool:
        return self.repeated("head", key, lambda: self._has(key))

    def copy(self, source: str, target: str) -> None:
        obstore = self._obstore
        self.repeated("copy", source, lambda: obstore.copy(self._store, source, target))

    def _has(self, key: str) -> bool:
        obstore = self._obstore
        try:
            obstore.head(self._store, key)
        except FileNotFoundError:
            return False
        return True

    def repeated(
        self,
        kind: str,
        key: str,
        act: Callable[[], Result],
        failures: tuple[type[Exception], ...] = (Exception,),
    ) -> Result:
        """Do something until it succeeds; StorageError when it cannot or patience is over.

        Only some kinds of `failures` are repeated; others are raised as they are.
        """
        began, pause, tries = time.monotonic(), FIRST_PAUSE, 0
        place = f"{self._address}/{key}"
        while True:
            REQUESTS[kind] += 1
            try:
                return act()
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place) from None
            except failures as error:
                reason, passes = _reason(error)
            tries += 1
            if not passes or time.monotonic() - began > self._patience:
                lasted = f" for {self._patience:.0f} seconds" if passes else ""
                msg = f"{place}: the store refused a {kind} request{lasted} ({reason}); {_REMEDY}"
                raise StorageError(msg) from None
            if tries >= _QUIETLY:
                _LOG.warning("%s: a %s request is repeated (%s)", place, kind, reason)
            REPEATED[kind] += 1
            self._sleep(self._dice.uniform(pause / 2, pause))
            pause = min(2 * pause, LONGEST_PAUSE)


def _library(address: str) -> Any:
    """Return the library that reaches stores, imported when it is first needed."""
    try:
        import_module("obstore.store")
        import_module("obstore.exceptions")
        return import_module("obstore")
    except ImportError:
        msg = (
            f"{address} is an object store, and the package obstore that reaches it is missing in "
            "this Python: pip install obstore, on the driver and on all executors"
        )
        raise DefinitionError(msg) from None


_REMEDY = (
    "check the bucket, the endpoint and the credentials (environment, instance role or the "
    "writer's storage.* options), then restart"
)


def _reason(error: Exception) -> tuple[str, bool]:
    """Return why a request failed, in words of ours, and whether that may pass."""
    kind, text = type(error).__name__, _COLOURS.sub("", str(error))
    if kind == "PermissionDeniedError":
        return "permission denied", False
    if kind == "UnauthenticatedError":
        return "the credentials were not accepted", False
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is not None:
        number = int(status[1])
        named = f" {code[1]}" if code is not None else ""
        return f"status {number}{named}", number >= 500 or number in _PASSING
    if kind in ("AlreadyExistsError", "PreconditionError"):
        return "another request for it was under way", True
    if kind in ("NotSupportedError", "InvalidPathError", "NotImplementedError"):
        return "the store does not know this request", False
    for word, cause in _CAUSES:
        if word in text:
            return cause, True
    return kind, True


@lru_cache(maxsize=32)
def open_bucket(address: str, options: tuple[tuple[str, str], ...]) -> Bucket:
    """Return a bucket by its address, `s3://bucket`, with options of the store; opened once."""
    parts = urlsplit(address)
    if parts.password is not None or (parts.username is not None and parts.scheme[:3] != "abf"):
        msg = (
            f"{parts.scheme}://{parts.hostname}: an address must not contain credentials. Set them "
            "in the environment or as storage.* options of the writer"
        )
        raise DefinitionError(msg)
    obstore = _library(address)
    config, client = _split(options)
    try:
        store = obstore.store.from_url(
            f"{SCHEMES[parts.scheme]}://{parts.netloc}",
            config=config,
            client_options=client,
            retry_config=_RETRIES,
        )
    except obstore.exceptions.BaseError as error:
        unknown = re.search(r"Configuration key: '([a-z0-9_]+)'", str(error))
        what = f"has no option storage.{unknown[1]}" if unknown else "was not given all it needs"
        msg = (
            f"{address}: the store {what}. Options are those of obstore (endpoint, region, "
            "access_key_id, ...), with 'storage.' in front, or the store's environment variables"
        )
        raise DefinitionError(msg) from None
    return Bucket(address, store)


#: the library repeats parts of large objects; everything else is repeated here
_RETRIES = {
    "max_retries": 2,
    "backoff": {
        "init_backoff": timedelta(seconds=FIRST_PAUSE),
        "max_backoff": timedelta(seconds=1),
        "base": 2,
    },
    "retry_timeout": timedelta(seconds=TIMEOUT),
}


def _split(options: Sequence[tuple[str, str]]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the options of the store and those of the connection."""
    config = {key.lower(): value for key, value in options}
    client: dict[str, Any] = {"timeout": f"{TIMEOUT:.0f} seconds"}
    for key in _CLIENT_OPTIONS & config.keys():
        value = config.pop(key)
        client[key] = value.lower() == "true" if key in _SWITCHES else value
    if plain_endpoint(config):
        client.setdefault("allow_http", True)
    return config, client


def plain_endpoint(config: Mapping[str, str]) -> bool:
    """Return whether the endpoint of a bucket was given as http, which is then what is meant."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
    given = (*config.items(), *((name, os.environ.get(name, "")) for name in names))
    return any("endpoint" in k.lower() and v.startswith("http://") for k, v in given)


def store_scheme(location: str) -> str | None:
    """Return the scheme of an object store's URI; None if this is none."""
    scheme = urlsplit(location).scheme
    return scheme if scheme in SCHEMES else None
