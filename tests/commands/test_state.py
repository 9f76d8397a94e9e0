from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from icestream import cli
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.state.versions.commits import SEGMENTS
from tests.fixtures.checkpoints import make
from tests.fixtures.object_store import BUCKET, ObjectStoreServer


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make("windows", str(tmp_path_factory.mktemp("windows")))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make("pairs", str(tmp_path_factory.mktemp("pairs")))


def said(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli.app, ["state", *words])
    assert result.exit_code == code, result.output
    return result.output


def reported(*words: str, code: int = 0) -> Any:
    return json.loads(said(*words, "--json", code=code))


def damaged(folder: Path) -> str:
    root = make("windows", str(folder))
    path = Path(root, SEGMENTS, Checkpoint(root).commit().added[0].info.name)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(bytes(data))
    return root


def test_show_reports_plan_versions_segments_and_sizes(windows: str) -> None:
    shown = reported("show", windows)
    assert shown["version"] == 5
    assert shown["plan"]["views"][0]["range"] == "20 seconds"
    assert {each["lifetime"] for each in shown["segments"]} == {"panes", "base"}
    (state,) = shown["state"]
    assert (state["operator"], state["groups"]) == ("view 0", 6)
    assert "state" not in reported("show", windows, "--quick")
    text = said("show", windows)
    for part in ("versions    1-5", "watermark   1970-01-01", "view 0", "panes", '"range"'):
        assert part in text


def test_groups_are_listed_with_their_keys(pairs: str) -> None:
    listed = reported("groups", pairs, "--limit", "4")
    assert len(listed) == 4
    assert set(listed[0]["key"]) == {"user"}
    assert '{"user": ' in said("groups", pairs, "--kept", "0: left")


def test_get_prints_one_group(windows: str, pairs: str) -> None:
    rows = reported("get", windows, "--key", "key=3")
    assert {row["row"]["key"] for row in rows} == {3}
    kept = {row["kept"] for row in reported("get", pairs, "--key", "user=3")}
    assert {"0: left", "1: right"} <= kept
    assert "open windows" in said("get", windows, "--key", "key=3", "--version", "4")
    assert said("get", windows, "--key", "key=99").startswith("view 0, open windows")
    assert reported("get", windows, "--key", "key=99") == []


def test_diff_prints_what_came_and_went(windows: str) -> None:
    changes = reported("diff", windows, "4", "5")
    assert {each["change"] for each in changes["changes"]} == {-1, 1}
    text = said("diff", windows, "4", "5", "--limit", "2")
    assert text.splitlines()[-1] == "more than 2 rows differ"
    assert said("diff", windows, "5", "5") == "0 rows differ\n"


def test_export_writes_a_private_file(windows: str, pairs: str, tmp_path: Path) -> None:
    one, many = tmp_path / "one.parquet", tmp_path / "many.parquet"
    written = reported("export", windows, "--to", str(one))
    table = pq.read_table(one)
    assert written["rows"] == table.num_rows > 0
    assert table.schema.names[:4] == ["__shard", "__group", "window", "key"]
    assert one.stat().st_mode & 0o777 == 0o600
    said("export", pairs, "--to", str(many))
    assert pq.read_table(many).schema.names == [
        "operator",
        "kept",
        "shard",
        "group",
        "key",
        "row",
    ]
    assert "already exists" in said("export", windows, "--to", str(one), code=1)
    assert sorted(os.listdir(tmp_path)) == ["many.parquet", "one.parquet"]


def test_rewrite_takes_what_export_wrote(tmp_path: Path) -> None:
    root, kept = make("pairs", str(tmp_path)), ("--kept", "0: left")
    file = tmp_path / "left.parquet"
    said("export", root, "--to", str(file), *kept)
    assert said("rewrite", root, "--from", str(file), *kept) == "no row differs from version 5\n"
    rows = pq.read_table(file)
    pq.write_table(rows.slice(0, 1), tmp_path / "one.parquet")
    done = reported("rewrite", root, "--from", str(tmp_path / "one.parquet"), *kept)
    assert (done["version"], done["rows"]) == (6, 1)
    assert said("rewrite", root, "--from", str(file), *kept).startswith("version 7: ")
    assert said("diff", root, "5", "7", *kept) == "0 rows differ\n"
    said("verify", root)
    assert "choose one kind of rows" in said("rewrite", root, "--from", str(file), code=1)
    assert "cannot be read" in said("rewrite", root, "--from", str(tmp_path), *kept, code=1)


def test_each_outcome_has_its_exit_code(windows: str, tmp_path: Path) -> None:
    assert said("verify", windows).endswith("fine\n")
    assert "not a checkpoint of Icestream" in said("verify", str(tmp_path), code=2)
    assert "not a checkpoint of Icestream" in said("show", str(tmp_path), code=2)
    root = damaged(tmp_path / "damaged")
    assert "DAMAGED" in said("verify", root, code=1)
    assert not reported("verify", root, code=1)["fine"]
    assert "did you mean" in said("groups", windows, "--operator", "view 9", code=1)


def test_repair_asks_before_it_changes_anything(windows: str, tmp_path: Path) -> None:
    assert "nothing to repair" in said("repair", windows)
    root = damaged(tmp_path / "damaged")
    text = said("repair", root, code=1)
    for part in ("would go back to version 4", "lost: version 5", "nothing was changed"):
        assert part in text
    said("verify", root, code=1)
    copy = str(tmp_path / "copy")
    assert reported("repair", root, "--to", copy)["version"] == 4
    assert "already exists" in said("repair", root, "--to", copy, code=1)
    assert "give one of them" in said("repair", root, "--to", copy, "--yes", code=1)
    said("verify", copy)
    assert "repaired in place" in said("repair", root, "--yes")
    assert said("verify", root).endswith("fine\n")


def test_every_command_prints_json(windows: str, tmp_path: Path) -> None:
    for words in (
        ("show", windows),
        ("groups", windows),
        ("get", windows, "--key", "key=1"),
        ("diff", windows, "4", "5"),
        ("export", windows, "--to", str(tmp_path / "state.parquet")),
        ("verify", windows),
        ("repair", windows),
        ("erase", make("windows", str(tmp_path)), "--key", "key=1"),
    ):
        assert reported(*words) is not None


def test_a_key_without_a_value_is_reported(windows: str) -> None:
    assert "name=value" in said("get", windows, "--key", "key", code=1)


def test_copies_go_to_stores_and_back(
    windows: str, tmp_path: Path, object_store: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    there = f"s3://{BUCKET}{tmp_path}/copy"
    size = reported("copy", windows, "--to", there)["files"]
    assert "fine" in said("verify", there)
    assert reported("show", there)["version"] == reported("show", windows)["version"]
    back = str(tmp_path / "back")
    assert reported("copy", there, "--to", back)["files"] == size
    assert "fine" in said("verify", back)
    assert "already" in said("upgrade", there)
    assert reported("repair", there, "--to", f"{there}-repaired")["done"] is None
