from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from examples.recommender.ratings import SCHEMA, read_ratings, read_table
from icestream.core.errors import InputError

#: user, item, rating, seconds; not in the order of time, two at the same second
ROWS = [(7, 104257, 4.5, 300), (1, 20, 5.0, 100), (7, 3, 0.5, 100), (2, 20, 3.0, 200)]
IN_ORDER = [ROWS[1], ROWS[2], ROWS[3], ROWS[0]]
HEADER = "userId,movieId,rating,timestamp\n"


def dat(rows: list[tuple[int, int, float, int]]) -> str:
    return "".join("::".join(map(str, row)) + "\n" for row in rows)


def csv(rows: list[tuple[int, int, float, int]]) -> str:
    return HEADER + "".join(",".join(map(str, row)) + "\n" for row in rows)


def written(path: Path, text: str) -> Path:
    if path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def rows_of(table: pa.Table) -> list[tuple[int, int, float, int]]:
    micros = table.column("time").cast(pa.int64()).to_pylist()
    columns = [table.column(name).to_pylist() for name in ("user", "item", "rating")]
    return list(zip(*columns, (each // 1_000_000 for each in micros), strict=True))


def test_oracle_all_formats_say_the_same(tmp_path: Path) -> None:
    for name, text in (("r.dat", dat(ROWS)), ("r.csv", csv(ROWS))):
        for end in ("", ".gz"):
            found = read_table(written(tmp_path / (name + end), text))
            assert found.schema == SCHEMA
            assert rows_of(found) == IN_ORDER


def test_oracle_ratings_come_in_the_order_of_time(tmp_path: Path) -> None:
    rows = [(user, user * 7 % 13, 3.5, user * 31 % 50) for user in range(1_000)]
    path = written(tmp_path / "r.dat", dat(rows))
    batches = list(read_ratings(path, batch_rows=64, block_bytes=100))
    assert [batch.num_rows for batch in batches] == [64] * 15 + [40]
    found = rows_of(pa.Table.from_batches(batches))
    # sorted() is stable: ties stay in the order of the file
    assert found == sorted(rows, key=lambda row: row[3])


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", 0),
        ("\n\n", 0),
        ("1::2::3::4", 1),
        ("1::0000002::3::4\r\n\r\n1::3::3e0::4\r\n", 2),
        (" 1::2 ::3::4\n", 1),
    ],
)
def test_what_is_still_a_file_of_ratings(tmp_path: Path, text: str, rows: int) -> None:
    path = tmp_path / "r.dat"
    path.write_bytes(text.encode())
    assert read_table(path).num_rows == rows


def test_a_header_alone_is_no_ratings(tmp_path: Path) -> None:
    assert read_table(written(tmp_path / "r.csv", HEADER)).num_rows == 0
    assert read_table(written(tmp_path / "s.csv", "\ufeff" + csv(ROWS))).num_rows == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1::2::3", "expected 4 fields, as user::item::rating::seconds; got '1::2::3'"),
        ("1::2::3::4::5", "expected 4 fields"),
        ("1,2,3,4", "expected 4 fields"),
        ("1:2:3:4", "expected 4 fields"),
        ("1::2:x:3::4", "expected 4 fields"),
        ("x::2::3::4", "user 'x' is not a whole number"),
        ("::2::3::4", "user '' is not a whole number"),
        ("1::2.5::3::4", "item '2.5' is not a whole number"),
        ("1::99999999999999999999::3::4", "is not a whole number of 64 bits"),
        ("1::2::good::4", "rating 'good' is not a number"),
        ("1::2::nan::4", "rating 'nan' is not a number"),
        ("1::2::::4", "rating '' is not a number"),
        ("1::2::3::now", "seconds 'now' is not a whole number"),
        ("1::2::3::-1", "time -1 is not in seconds since 1970"),
        ("1::2::3::1365029107000", "time 1365029107000 is not in seconds"),
    ],
)
@pytest.mark.parametrize("end", ["", ".gz"])
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str, end: str) -> None:
    text = "1::2::3::4\n\n" + dat(ROWS) + line + "\n" + dat(ROWS)
    path = written(tmp_path / f"r.dat{end}", text)
    with pytest.raises(InputError) as caught:
        read_table(path)
    assert f"{path}, line 7: " in str(caught.value)
    assert message in str(caught.value)


def test_a_bad_line_of_a_csv_file_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "r.csv", csv(ROWS) + "1,2,3\n")
    with pytest.raises(InputError, match=r"r\.csv, line 6: expected 4 fields, as user,item,rating"):
        read_table(path)


@pytest.mark.parametrize("text", ["", "1,2,3.5,4\n", "user,item,rating,time\n1,2,3.5,4\n"])
def test_another_header_is_refused(tmp_path: Path, text: str) -> None:
    path = written(tmp_path / "r.csv", text)
    with pytest.raises(InputError, match="line 1: the header must be 'userId,movieId"):
        read_table(path)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "r.txt", dat(ROWS))
    with pytest.raises(InputError, match=r"rename the file to end in \.dat"):
        read_table(path)


@pytest.mark.parametrize("keep", [0.5, 0.99])
def test_a_file_that_was_cut_off_says_so(tmp_path: Path, keep: float) -> None:
    rows = [(user, user * user, 3.5, user * 977) for user in range(2_000)]
    packed = gzip.compress(dat(rows).encode())
    path = tmp_path / "r.dat.gz"
    path.write_bytes(packed[: int(keep * len(packed))])
    with pytest.raises(InputError, match="cut off or damaged"):
        read_table(path)


def test_what_is_not_compressed_says_so(tmp_path: Path) -> None:
    path = tmp_path / "r.dat.gz"
    path.write_text(dat(ROWS))
    with pytest.raises(InputError, match="cut off or damaged"):
        read_table(path)


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "r.dat")
