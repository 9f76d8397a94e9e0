from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.core.errors import CheckpointError, DamageError, DefinitionError, StorageError
from icestream.runtime.tables import current_table
from icestream.runtime.tables.current_table import CurrentTable
from icestream.runtime.tables.table_manifest import Manifest, TableRun
from icestream.state.files import LocalFiles
from icestream.state.versions.sealed import sealed

ROWS = pa.schema(
    [
        pa.field("change", pa.int32(), nullable=False),
        ("k", pa.string()),
        ("n", pa.int64()),
        ("names", pa.list_(pa.string())),
    ]
)


def opened(folder: Path, part_bytes: int = 4000, runs: int = 3) -> CurrentTable:
    return CurrentTable(LocalFiles(), str(folder), part_bytes, runs)


def content(table: CurrentTable) -> Counter[tuple[Any, ...]]:
    rows = [row for part in table.read(0) for row in part.to_pylist()]
    return Counter((row["k"], row["n"], tuple(row["names"] or ())) for row in rows)


def changed(dice: Random, keys: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for key in dice.sample(range(keys), dice.randrange(keys)):
        k = None if key == 0 else f"key{key}"
        if dice.random() < 0.3:
            rows.append({"change": -1, "k": k, "n": None, "names": None})
        for _ in range(0 if rows and rows[-1]["k"] == k else dice.choice([1, 1, 1, 2])):
            names = [dice.choice(["a", "", "é"]) for _ in range(dice.randrange(3))]
            rows.append({"change": 1, "k": k, "n": dice.randrange(9), "names": names})
    return rows


@pytest.mark.parametrize("seed", range(4))
def test_oracle_a_table_is_its_changes_by_key(seed: int, tmp_path: Path) -> None:
    dice = Random(seed)
    keys, expected = dice.choice([3, 40, 300]), dict[Any, list[tuple[Any, ...]]]()
    for version in range(40):
        rows = changed(dice, keys)
        for key in {row["k"] for row in rows}:
            mine = [row for row in rows if row["k"] == key and row["change"] > 0]
            expected[key] = [(key, row["n"], tuple(row["names"])) for row in mine]
        cut = dice.randrange(len(rows) + 1)
        tables = [pa.Table.from_pylist(part, ROWS) for part in (rows[:cut], rows[cut:])]
        opened(tmp_path).apply(version, tables, ROWS, ["k"])
        if version % 7 == 0:
            assert content(opened(tmp_path)) == Counter(chain(*expected.values()))
    assert content(opened(tmp_path)) == Counter(chain(*expected.values()))
    # what merges replaced is gone
    manifest = opened(tmp_path).manifest()
    assert manifest is not None
    assert len([*tmp_path.glob("*.parquet")]) <= 2 * len(manifest.names) + 8


def test_a_version_is_applied_once(tmp_path: Path) -> None:
    one = pa.Table.from_pylist([{"change": 1, "k": "a", "n": 1, "names": []}], ROWS)
    two = pa.Table.from_pylist([{"change": 1, "k": "a", "n": 2, "names": []}], ROWS)
    table = opened(tmp_path)
    table.apply(0, [one], ROWS, ["k"])
    table.apply(1, [two], ROWS, ["k"])
    for version in (0, 1):
        table.apply(version, [one], ROWS, ["k"])
    assert content(table) == Counter({("a", 2, ()): 1})


def test_rows_without_a_change_replace_those_of_their_key(tmp_path: Path) -> None:
    plain = pa.schema([("k", pa.string()), ("n", pa.int64())])
    table = opened(tmp_path)
    for version, values in enumerate([[("a", 1), ("b", 1), ("a", 2)], [("b", 3)]]):
        rows = pa.Table.from_pylist([{"k": k, "n": n} for k, n in values], plain)
        table.apply(version, [rows], plain, ["k"])
    found = {(row["k"], row["n"]) for part in table.read(0) for row in part.to_pylist()}
    assert found == {("a", 2), ("b", 3)}


def test_bounded_one_range_of_keys_is_in_memory(tmp_path: Path) -> None:
    table = opened(tmp_path, part_bytes=20_000)
    for version in range(9):
        rows = [
            {"change": 1, "k": f"{version}-{n}", "n": n, "names": ["x" * 20]} for n in range(800)
        ]
        table.apply(version, [pa.Table.from_pylist(rows, ROWS)], ROWS, ["k"])
    sizes = [part.num_rows for part in table.read(0)]
    assert sum(sizes) == 7200
    assert max(sizes) < 1200


@pytest.mark.parametrize("seed", range(6))
def test_bounded_bytes_are_written_again(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0
    write = CurrentTable._write

    def counted(table: CurrentTable, rows: pa.Table, first: int = 0) -> TableRun:
        nonlocal written
        written += rows.num_rows
        return write(table, rows, first)

    monkeypatch.setattr(CurrentTable, "_write", counted)
    dice, table, brought, n = Random(seed), opened(tmp_path, 50_000, 4), 0, 0
    expected: dict[str, int] = {}
    # a large table, of which later versions change a few rows, or many again
    for version in range(120):
        count = 3000 if version < 5 or dice.random() < 0.02 else dice.choice([1, 2, 20, 90])
        keys = [f"{dice.randrange(20_000)}" for _ in range(count)]
        gone = dice.random() < 0.2
        rows: list[dict[str, Any]] = [
            {"change": -1 if gone else 1, "k": key, "n": n, "names": []}
            for n, key in enumerate(dict.fromkeys(keys), n)
        ]
        n += len(rows)
        brought += len(rows)
        expected.update((row["k"], row["n"]) for row in rows)
        if gone:
            expected = {key: expected[key] for key in expected.keys() - {*keys}}
        table.apply(version, [pa.Table.from_pylist(rows, ROWS)], ROWS, ["k"])
        manifest = table.manifest()
        assert manifest is not None
        assert len(manifest.runs) <= 4 + 12
        # a run, merges with others, and one with the parts
        assert written <= (1 + 2 + 3) * brought
    assert content(table) == {(key, number, ()): 1 for key, number in expected.items()}


def test_what_is_deleted_stays_deleted_while_runs_are_merged(tmp_path: Path) -> None:
    table = opened(tmp_path, runs=2)

    def apply(version: int, change: int, *keys: str) -> None:
        rows = [{"change": change, "k": key, "n": version, "names": []} for key in keys]
        table.apply(version, [pa.Table.from_pylist(rows, ROWS)], ROWS, ["k"])

    for version in range(3):
        apply(version, 1, *(f"key{n}" for n in range(500)))
    manifest = table.manifest()
    assert manifest is not None
    parts = manifest.parts
    for version in range(3, 12):
        apply(version, -1 if version % 3 else 1, "key0", f"key{version}")
    manifest = table.manifest()
    assert manifest is not None
    assert manifest.parts == parts
    assert len(manifest.runs) <= 4
    rows = Counter(key for key, _, _ in content(table).elements())
    gone = {"key0", *(f"key{version}" for version in range(3, 12) if version % 3)}
    assert rows == Counter({f"key{n}" for n in range(500)} - gone)


def test_a_crash_amid_a_merge_leaves_the_table_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = CurrentTable._write
    expected: dict[str, int] = {}
    dice = Random(7)
    for version in range(30):
        count = 300 if version < 4 else 5
        keys = [*dict.fromkeys(f"{dice.randrange(900)}" for _ in range(count))]
        rows = [{"change": 1, "k": key, "n": version, "names": []} for key in keys]
        batch = [pa.Table.from_pylist(rows, ROWS)]
        left = dice.randrange(4)

        def crashes(table: CurrentTable, rows: pa.Table, first: int = 0) -> TableRun:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return write(table, rows, first)

        with monkeypatch.context() as patched:
            patched.setattr(CurrentTable, "_write", crashes)
            with suppress(KeyboardInterrupt):
                opened(tmp_path, 2000).apply(version, batch, ROWS, ["k"])
        if left < 0:
            assert content(opened(tmp_path)) == {(k, n, ()): 1 for k, n in expected.items()}
        opened(tmp_path, 2000).apply(version, batch, ROWS, ["k"])
        expected |= dict.fromkeys(keys, version)
        assert content(opened(tmp_path)) == {(k, n, ()): 1 for k, n in expected.items()}


def test_duckdb_reads_the_files_of_the_newest_manifest(tmp_path: Path) -> None:
    guide = Path("docs/guide/now.md").read_text()
    begin, end = guide.index("SET VARIABLE folder"), guide.index("AND change > 0") + 14
    statements = guide[begin:end].replace("chk/busy/icestream/now/0", str(tmp_path))
    dice = Random(3)
    for version in range(1, 30):
        rows = pa.Table.from_pylist(changed(dice, 60), ROWS)
        opened(tmp_path).apply(version, [rows], ROWS, ["k"])
        expected = content(opened(tmp_path))
        with duckdb.connect() as database:
            found = database.execute(statements)
            names = [column[0] for column in found.description]
            rows_there = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        there = ((row["k"], row["n"], tuple(row["names"] or ())) for row in rows_there)
        assert Counter(there) == expected


def as_an_earlier_release_wrote_it(folder: Path) -> Manifest:
    """Write a table with runs and parts whose manifest does not know how large they are."""
    for version in range(1, 7):
        rows = [{"change": 1, "k": f"key{version}", "n": version, "names": []}]
        opened(folder).apply(version, [pa.Table.from_pylist(rows, ROWS)], ROWS, ["k"])
    newest = opened(folder).manifest()
    assert newest is not None
    assert newest.runs
    assert newest.parts
    body = json.loads((folder / newest.name).read_bytes().partition(b"\n")[0])
    body["runs"] = [name for _, name, _ in body["runs"]]
    body["parts"] = [each[:2] for each in body["parts"]]
    (folder / newest.name).write_bytes(sealed(body))
    return newest


def test_a_table_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    as_an_earlier_release_wrote_it(tmp_path)
    assert content(opened(tmp_path)) == {(f"key{n}", n, ()): 1 for n in range(1, 7)}
    rows = [{"change": 1, "k": "key6", "n": 6, "names": []}]
    opened(tmp_path).apply(7, [pa.Table.from_pylist(rows, ROWS)], ROWS, ["k"])
    assert content(opened(tmp_path)) == {(f"key{n}", n, ()): 1 for n in range(1, 7)}


def test_files_of_unknown_size_are_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = as_an_earlier_release_wrote_it(tmp_path)
    files: Counter[str] = Counter()
    open_ = CurrentTable._open

    def noted(table: CurrentTable, name: str) -> pq.ParquetFile:
        files[name] += 1
        return open_(table, name)

    monkeypatch.setattr(CurrentTable, "_open", noted)
    opened(tmp_path).keep(7, lambda rows: pa.array([True] * rows.num_rows))
    assert files == dict.fromkeys(newest.names, 1)
    assert content(opened(tmp_path)) == {(f"key{n}", n, ()): 1 for n in range(1, 7)}


def test_a_merge_opens_runs_once_and_reads_their_rows_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_table, "_ROWS_AT_ONCE", 200)
    files: Counter[str] = Counter()
    rows = 0
    read, open_ = pq.ParquetFile.read_row_group, CurrentTable._open

    def counted(file: pq.ParquetFile, number: int) -> pa.Table:
        nonlocal rows
        found = read(file, number)
        rows += found.num_rows
        return found

    def noted(table: CurrentTable, name: str) -> pq.ParquetFile:
        files[name] += 1
        return open_(table, name)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    monkeypatch.setattr(CurrentTable, "_open", noted)
    table = opened(tmp_path, part_bytes=5_000, runs=3)
    for version in range(4):
        batch = [
            {"change": 1, "k": f"{version}-{n}", "n": n, "names": ["x" * 20]} for n in range(1000)
        ]
        table.apply(version, [pa.Table.from_pylist(batch, ROWS)], ROWS, ["k"])
    manifest = table.manifest()
    assert manifest is not None
    assert len(manifest.parts) > 20
    # the last group of a run is read again, once its file was closed
    assert max(files.values()) <= 2
    assert rows <= 2 * 4000


def test_a_reader_sees_a_whole_version_while_runs_are_merged(tmp_path: Path) -> None:
    table = opened(tmp_path, part_bytes=20_000, runs=1)

    def version(number: int) -> None:
        rows = [{"change": 1, "k": f"{n}", "n": number, "names": []} for n in range(2000)]
        table.apply(number, [pa.Table.from_pylist(rows, ROWS)], ROWS, ["k"])

    for number in range(3):
        version(number)
    reading = table.read(0)
    seen = Counter(row["n"] for row in next(reading).to_pylist())
    version(3)
    for part in reading:
        seen.update(row["n"] for row in part.to_pylist())
    assert seen == Counter({2: 2000})


def test_a_table_follows_a_checkpoint_that_was_rolled_back(tmp_path: Path) -> None:
    for version in range(1, 7):
        rows = [{"change": 1, "k": "a", "n": version, "names": []}]
        opened(tmp_path).apply(version, [pa.Table.from_pylist(rows, ROWS)], ROWS, ["k"])
    opened(tmp_path).roll_back(9)
    assert content(opened(tmp_path)) == {("a", 6, ()): 1}
    opened(tmp_path).roll_back(5)
    assert content(opened(tmp_path)) == {("a", 5, ()): 1}
    # versions 1 to 4 were merged, and what was before the merge is gone
    with pytest.raises(StorageError, match="rolled back to version 2"):
        opened(tmp_path).roll_back(2)
    again = [{"change": 1, "k": "a", "n": 60, "names": []}]
    opened(tmp_path).apply(6, [pa.Table.from_pylist(again, ROWS)], ROWS, ["k"])
    assert content(opened(tmp_path)) == {("a", 60, ()): 1}


def test_a_damaged_file_of_a_table_is_named(tmp_path: Path) -> None:
    dice = Random(1)
    for version in range(1, 7):
        rows = [{"change": 1, "k": f"key{n}", "n": version, "names": ["a"]} for n in range(9)]
        opened(tmp_path).apply(version, [pa.Table.from_pylist(rows, ROWS)], ROWS, ["k"])
    newest = opened(tmp_path).manifest()
    assert newest is not None
    for name in (newest.name, *newest.names):
        path = next(tmp_path.rglob(name))
        whole = path.read_bytes()
        for place in dice.sample(range(len(whole)), 40):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << dice.randrange(8)
            path.write_bytes(flipped)
            with pytest.raises((DamageError, CheckpointError), match=name):
                content(opened(tmp_path))
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DamageError, match=name):
            content(opened(tmp_path))
        path.write_bytes(whole)
    assert content(opened(tmp_path)) == {(f"key{n}", 6, ("a",)): 1 for n in range(9)}


def test_columns_of_the_table_itself_are_refused(tmp_path: Path) -> None:
    rows = pa.table({"_version": [1]})
    with pytest.raises(DefinitionError, match=r"called \['_version'\]: rename yours"):
        opened(tmp_path).apply(1, [rows], rows.schema, ["_version"])
