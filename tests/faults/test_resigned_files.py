from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

import pytest

from icestream.core.errors import IcestreamError
from icestream.state.files import LocalFiles
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import PLAN, SEGMENTS, VersionStore
from tests.faults.changed_files import ChangedFiles
from tests.faults.resigned_files import changed_payloads, cut, sealed, signed
from tests.fixtures.checkpoints import make


@pytest.mark.parametrize("kind", ["windows", "tumbling", "events"])
def test_signing_again_changes_nothing(kind: str, tmp_path: Path) -> None:
    root = make(kind, str(tmp_path))
    for path in Path(root, SEGMENTS).iterdir():
        assert signed(*cut(path.read_bytes())) == path.read_bytes()


def test_a_value_that_is_sealed_again_is_opened(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    path = Path(VersionStore(LocalFiles(), root).path(5))
    value = VersionStore(ChangedFiles({}), root).load(5).to_json()
    changed = ChangedFiles({str(path): sealed({**value, "watermark": 17})})
    assert VersionStore(changed, root).load(5).watermark == 17
    assert Path(root, PLAN).exists()


@pytest.mark.parametrize("kind", ["windows", "tumbling", "events"])
def test_payloads_that_are_signed_again_pass_every_checksum(kind: str, tmp_path: Path) -> None:
    root = make(kind, str(tmp_path))
    dice, changes = random.Random(3), 0
    for path in Path(root, SEGMENTS).iterdir():
        sample = path.read_bytes()
        data = changed_payloads(sample, dice)
        contents = {str(path): data}
        with closing(SegmentReader(ChangedFiles(contents), str(path))) as reader:
            new = [bytes(record.payload) for record in reader.scan()]
        with closing(SegmentReader(ChangedFiles({}), str(path))) as reader:
            old = [bytes(record.payload) for record in reader.scan()]
        assert len(new) == len(old)
        changes += new != old
    assert changes > 2


def test_without_a_signature_the_change_is_found(tmp_path: Path) -> None:
    root = make("windows", str(tmp_path))
    path = next(Path(root, SEGMENTS).iterdir())
    header, blocks, *rest = cut(path.read_bytes())
    broken = b"".join((header, bytes([blocks[0] ^ 1]), blocks[1:], *rest))
    with (
        pytest.raises(IcestreamError),
        closing(SegmentReader(ChangedFiles({str(path): broken}), str(path))) as reader,
    ):
        list(reader.scan())
