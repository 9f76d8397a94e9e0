"""What a checkpoint of somebody else can make us do: nothing but an error that names a file."""

from __future__ import annotations

import json
import os
import stat
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icestream.core.errors import DamageError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.state_rows import Reading
from icestream.inspect.verify import verify
from icestream.state.files import LocalFiles
from icestream.state.log.format import (
    HEADER,
    MOST_RAW,
    ROW_DTYPE,
    TRAILER,
    footer_checksum,
)
from icestream.state.log.reader import SegmentReader
from icestream.state.log.writer import SegmentWriter
from icestream.state.versions.commits import VersionStore
from icestream.state.versions.sealed import FORMAT, seal
from tests.fixtures.checkpoints import KINDS, make

#: kinds of checkpoints that take long to make
SLOW = ("groups", "update windows")

OUTSIDE = ("../x.seg", "/etc/passwd", "a/b", "..", ".", "", "x\0y", "a\nb", "x" * 300, 7, None)


def sealed(value: Any) -> bytes:
    body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return body + b"\n" + seal(FORMAT, body)


def rewritten(root: str, version: int, change: Any) -> VersionStore:
    """Let somebody change a commit and seal it again."""
    path = Path(VersionStore(LocalFiles(), root).path(version))
    value = json.loads(path.read_bytes().split(b"\n")[0])
    change(value)
    path.write_bytes(sealed(value))
    return VersionStore(LocalFiles(), root)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make("windows", str(tmp_path_factory.mktemp("windows")))


@pytest.fixture
def copy(root: str, tmp_path: Path) -> str:
    import shutil

    return str(shutil.copytree(root, tmp_path / "checkpoint"))


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("where", ["added", "results", "manifests"])
def test_a_name_that_leads_out_of_the_checkpoint_is_damage(
    name: Any, where: str, copy: str
) -> None:
    def change(value: Any) -> None:
        target = value[where][0]
        if where == "manifests":
            target["layers"][0][0] = name
        else:
            (target if where == "results" else target["info"])["name"] = name

    version = 1 if where == "manifests" else 5
    store = rewritten(copy, version, change)
    with pytest.raises(DamageError, match="not those of a commit"):
        store.load(version)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "5"),
        ("batch", -1),
        ("watermark", 2**70),
        ("seen", 5),
        ("routes", [{}]),
        ("bases", [-1]),
        ("released", None),
        ("added", {"a": 1}),
        ("added", [[]]),
        ("results", [1]),
        ("decisions", 3),
        ("next_ordinal", 1.5),
        ("horizon", True),
        ("unknown", 1),
        ("arenas", [1]),
    ],
)
def test_a_sealed_commit_that_makes_no_sense_is_damage(field: str, value: Any, copy: str) -> None:
    store = rewritten(copy, 5, lambda commit: commit.update({field: value}))
    with pytest.raises(DamageError):
        store.load(5)


@pytest.mark.parametrize(
    "body",
    [b"[1]", b"7", b"{", b"\xff\xfe", b"[" * 100_000, b'{"plan":3}', b'{"legend":{}}', b"{}"],
)
def test_a_sealed_plan_that_is_none_is_damage(body: bytes, copy: str) -> None:
    Path(copy, "plan.json").write_bytes(body + b"\n" + seal(FORMAT, body))
    with pytest.raises(DamageError, match=r"plan\.json"):
        VersionStore(LocalFiles(), copy).plan()


def test_a_format_of_many_digits_is_damage(copy: str) -> None:
    path = Path(copy, "plan.json")
    path.write_bytes(path.read_bytes().replace(b"icestream 4 ", b"icestream " + b"9" * 9000 + b" "))
    with pytest.raises(DamageError):
        VersionStore(LocalFiles(), copy).plan()


def segment(path: Path) -> bytearray:
    writer = SegmentWriter(LocalFiles(), str(path), 5, codec="zstd", block_bytes=4096)
    for number in range(9):
        writer.append(np.zeros(300, dtype=np.int64), group=number, rows=300)
    writer.finish()
    return bytearray(path.read_bytes())


def signed(data: bytearray, table: Any, **trailer: int) -> bytes:
    """Return a segment with another table and trailer, signed as if they had been written."""
    names = ("directory", "table", "records", "stream", "expiry", "blocks", "ordinal")
    fields = list(TRAILER.unpack(data[-TRAILER.size :]))
    for name, value in trailer.items():
        fields[names.index(name)] = value
    at = fields[1]
    header, rows = bytes(data[: HEADER.size]), bytes(table.tobytes())
    fields[7] = footer_checksum(fields[6], header, rows, TRAILER.pack(*fields))
    return bytes(data[:at]) + rows + TRAILER.pack(*fields)


@pytest.mark.parametrize("column", ["first", "place", "stored", "raw", "entry", "entries"])
@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1])
def test_bounded_what_a_signed_segment_can_make_us_allocate(
    column: str, value: int, tmp_path: Path
) -> None:
    path = tmp_path / "x.seg"
    data = segment(path)
    place = struct.unpack("<Q", data[-TRAILER.size + 8 : -TRAILER.size + 16])[0]
    table = np.frombuffer(bytes(data[place : -TRAILER.size]), dtype=ROW_DTYPE).copy()
    if table[column][1] == value:
        pytest.skip("this is what it is")
    table[column][1] = value
    path.write_bytes(signed(data, table))
    with pytest.raises(DamageError, match=r"x\.seg"):
        list(SegmentReader(LocalFiles(), str(path)).scan())


def test_bounded_a_small_block_that_claims_gigabytes_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.seg"
    data = segment(path)
    place = struct.unpack("<Q", data[-TRAILER.size + 8 : -TRAILER.size + 16])[0]
    table = np.frombuffer(bytes(data[place : -TRAILER.size]), dtype=ROW_DTYPE).copy()
    more = 2**32 - 8 - int(table["raw"][-1])
    table["raw"][-1] += more
    stream = int(table["first"][-1]) + int(table["raw"][-1])
    path.write_bytes(signed(data, table, stream=stream))
    with pytest.raises(DamageError, match="claims an impossible size"):
        SegmentReader(LocalFiles(), str(path))


def test_a_large_block_that_compresses_too_well_is_stored_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / "x.seg")
    writer = SegmentWriter(LocalFiles(), path, 5, codec="zstd")
    zeros = bytes(MOST_RAW + 8)
    marker = writer.append(zeros)
    assert writer.finish().bytes > MOST_RAW
    assert SegmentReader(LocalFiles(), path).read(marker).payload == zeros


@pytest.mark.parametrize("kind", ["windows", pytest.param("pairs", marks=pytest.mark.slow)])
def test_files_and_folders_are_for_the_user_alone(kind: str, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        root = make(kind, str(tmp_path))
    finally:
        os.umask(before)
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            mode = stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode)
            assert mode == (0o700 if name in folders else 0o600), name
    assert stat.S_IMODE(os.stat(root).st_mode) == 0o700


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] if kind in SLOW else []) for kind in KINDS],
)
def test_nothing_is_unpickled_on_the_way(kind: str, tmp_path: Path) -> None:
    root = make(kind, str(tmp_path))
    rows = sum(batch.num_rows for batch in Reading(root).batches())
    # kernels are compiled by now: their own cache is no part of the checkpoint
    WATCH.classes = []
    try:
        assert sum(batch.num_rows for batch in Reading(root).batches()) == rows > 0
        assert verify(Checkpoint(root)).is_fine
        assert WATCH.classes == []
    finally:
        WATCH.classes = None


class Watch:
    """Hears which classes are unpickled, while it listens."""

    classes: list[Any] | None = None

    def __call__(self, event: str, about: tuple[Any, ...]) -> None:
        if self.classes is not None and event in ("pickle.find_class", "exec", "marshal.loads"):
            self.classes.append((event, about))


WATCH = Watch()
sys.addaudithook(WATCH)
