"""Text that pyarrow and Spark might take differently, read by both."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from icestream.kernels.delimited_text import find_values
from icestream.runtime.ingest import csv
from icestream.runtime.ingest.csv import CsvReader, blocks
from icestream.runtime.ingest.file_splits import FileSplit
from icestream.runtime.ingest.reader import UnlikeSpark
from icestream.runtime.spark.arrow_types import to_arrow_schema

CONF = {
    "spark.sql.columnNameOfCorruptRecord": "_corrupt_record",
    "spark.sql.csv.parser.columnPruning.enabled": "true",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.session.timeZone": "UTC",
}


def columns_of(text: str) -> StructType:
    return cast("StructType", StructType.fromDDL(text))


def whole(path: Path) -> FileSplit:
    return FileSplit(str(path), 0, path.stat().st_size)


def reader_of(names: list[str], zone: str = "UTC", **options: str) -> CsvReader:
    conf = {**CONF, "spark.sql.session.timeZone": zone}
    found = CsvReader.of(tuple(names), options, conf)
    assert found is not None
    return found


def directly(path: Path, schema: pa.Schema, **options: str) -> list[tuple[object, ...]] | None:
    """Read a file ourselves; None where we leave it to Spark."""
    try:
        reader = reader_of(schema.names, **options)
        batches = list(reader.batches(whole(path), schema))
    except UnlikeSpark:
        return None
    rows = pa.Table.from_batches(batches, schema).to_pylist()
    return [tuple(row.values()) for row in rows]


VALUES = {
    "bigint": "1 -1 007 -0 +1 0x1F 1.0 1e3 9223372036854775807 9223372036854775808 - 1_0",
    "tinyint": "127 -128 128 0xff",
    "double": "1 1. -.5 .5 1e5 1E5 +1.5 1d 1e400 nan NaN inf Inf -Inf Infinity 0x1p3 1e-400 "
    "4.9e-324 -0.0 0.1000000000000000055511151231257827 1e --1",
    "float": "0.1 1e39 1e-46 16777217 0.5000000298023224 1f",
    "boolean": "true TRUE True tRuE 1 0 t false FALSE False no",
    "date": "2020-01-01 2020-1-1 2020 2020-02-30 0001-01-01 1582-10-10 9999-12-31 20200101",
    "timestamp": "2020-01-01 2020-01-01T10 2020-01-01T10:20 2020-01-01T10:20:30 "
    "1500-01-01T00:00:00 2020-01-01T10:20:30.1 2020-01-01T10:20:30.123456 "
    "2020-01-01T10:20:30.1234567 2020-02-30T00:00:00 2020-01-01T24:00:00 "
    "0001-01-01T00:00:00 9999-12-31T23:59:59.999999 2020-01-01T10:20:30Z "
    "2020-01-01T10:20:30.5Z 2020-01-01T10:20Z 2020-01-01T10Z 2020-01-01Z "
    "2020-01-01T10:20:30+01:00 2020-01-01T10:20:30+0100 2020-01-01T10:20:30-23:59 "
    "2020-01-01T10:20:30+18:01 1577836800 2020-01-01t10:20:30 2020-01-01T10:20:30z "
    "20200101T102030",
    "timestamp_ntz": "2020-01-01 2020-01-01T10:20:30 2020-01-01T10:20:30Z 2020-01-01T10",
    "string": "a NULL null NaN \u00e9 a'b #x a|b - \u00a0x N/A a\u2028b 0x1",
}
#: values that we read ourselves, for every type
READ = {
    "bigint": "1 -1 007 -0 9223372036854775807",
    "tinyint": "127 -128",
    "double": "1 1. -.5 .5 1e5 1E5 +1.5 1e-400 4.9e-324 -0.0 0.1000000000000000055511151231257827",
    "float": "0.1 1e-46 16777217 0.5000000298023224",
    "boolean": "true TRUE True false FALSE False",
    "date": "2020-01-01 0001-01-01 1582-10-10 9999-12-31",
    "timestamp": "2020-01-01 2020-01-01T10 2020-01-01T10:20 2020-01-01T10:20:30 "
    "1500-01-01T00:00:00 2020-01-01T10:20:30.1 2020-01-01T10:20:30.123456 "
    "0001-01-01T00:00:00 9999-12-31T23:59:59.999999 2020-01-01T10:20:30Z "
    "2020-01-01T10:20:30.5Z",
    "timestamp_ntz": "2020-01-01 2020-01-01T10:20:30 2020-01-01T10",
    "string": "a NULL null NaN \u00e9 a'b #x a|b - \u00a0x N/A a\u2028b",
}


@pytest.mark.spark
@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", VALUES)
def test_oracle_awkward_values_are_read_as_spark_reads_them(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    names = columns_of(f"i int, v {kind}, last string")
    schema = to_arrow_schema(names)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    values = [*VALUES[kind].split(" "), ""]
    texts = [*values, *(f'"{value}"' for value in values)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.csv").write_text(f"{number},{text},z\n")
    table = spark.read.schema(names).csv(str(tmp_path)).toArrow().cast(schema)
    expected = {row["i"]: tuple(row.values()) for row in table.to_pylist()}
    read = []
    for number, text in enumerate(texts):
        found = directly(tmp_path / f"{number}.csv", schema)
        if found is not None:
            assert repr(found) == repr([expected[number]]), text
            read.append(text)
    plain = READ[kind].split(" ")
    assert read == [*plain, "", *(f'"{value}"' for value in plain)]


LINES = {
    "plain": "1,a,2\n3,b,4\n",
    "no end": "1,a,2\n3,b,4",
    "carriage returns": "1,a,2\r\n3,b,4\r\n",
    "lone carriage return": "1,a,2\r3,b,4\n",
    "blank lines": "\n1,a,2\n\n\n3,b,4\n\n",
    "lines of blanks": "1,a,2\n   \n3,b,4\n",
    "blanks": "1, a ,2\n 3,b,4 \n",
    "inner blanks": "1,a b c,2\n",
    "tabs": "1,\ta,2\n",
    "quotes": '1,"a,b",2\n3,"",4\n5,a"b,6\n',
    "quoted": '1,"a,b",2\n"3","b c","4"\r\n5,",","6"',
    "quoted nulls": '1,"NA",2\n"NA","a","NA"\n',
    "quoted emptiness": '1,"",2\n',
    "quoted line end": '1,"a\nb",2\n3,"c",4\n',
    "quoted blanks": '1," a",2\n3,"b ",4\n',
    "doubled quotes": '1,"a""b",2\n',
    "quotes inside": '1,a"b"c,2\n3,"a"b,4\n',
    "open quote": '1,"a,2\n3,b,4\n',
    "escapes": "1,a\\,b,2\n",
    "too few": "1,a\n3,b,4\n",
    "too many": "1,a,2,9\n3,b,4\n",
    "nulls": ",,\nNA,NA,NA\n1,,2\n",
    "wrong value": "x,a,2\n3,b,4\n",
    "nul": "1,a\0,2\n",
    "byte order mark": "\ufeff1,a,2\n",
    "nothing": "",
    "comment": "#1,a,2\n3,b,4\n",
    "long": "".join(f"{n},name{n},{n + 1}\n" for n in range(5_000)),
}


@pytest.mark.sample(20)
@pytest.mark.spark
@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize("options", [{}, {"header": "true"}, {"nullValue": "NA"}], ids=str)
def test_oracle_awkward_text_is_read_as_spark_reads_it(
    lines: str, options: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(LINES[lines].encode())
    names = columns_of("x bigint, name string, y double")
    found = directly(path, to_arrow_schema(names), **options)
    expected = spark.read.schema(names).options(**options).csv(str(path)).collect()
    if found is not None:
        assert found == [tuple(row) for row in expected]
    read_here = {"plain", "no end", "carriage returns", "blank lines", "inner blanks", "long"}
    assert lines not in read_here | {"quoted"} or found is not None


@pytest.mark.spark
def test_oracle_unused_columns_may_hold_anything(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1,zzz,2\n3,zzz,4\n")
    names = columns_of("x bigint, odd bigint, y double")
    reader = reader_of(names.names)
    wanted = pa.schema([("y", pa.float64()), ("x", pa.int64())])
    [batch] = reader.batches(whole(path), wanted)
    expected = spark.read.schema(names).csv(str(path)).select("y", "x").collect()
    assert [tuple(row.values()) for row in batch.to_pylist()] == [tuple(row) for row in expected]


def test_pieces_of_a_csv_file_share_its_lines_without_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv, "BLOCK_BYTES", 64)
    monkeypatch.setattr(csv, "LINE_BYTES", 16)
    path = tmp_path / "a.csv"
    text = "".join(f"{n},{'x' * (n * 37 % 90)}\n" for n in range(60)) + "60,end"
    path.write_text(text)
    size = path.stat().st_size
    for step in (1, 7, 50, 333, size):
        cuts = [*range(0, size, step), size]
        found = [
            b"".join(blocks(FileSplit(str(path), start, end - start)))
            for start, end in itertools.pairwise(cuts)
        ]
        assert b"".join(found).decode() == text
        lines = [line for part in found for line in part.decode().splitlines()]
        assert lines == text.splitlines()


def test_only_the_first_piece_has_the_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n" + "".join(f"{n}\n" for n in range(100)))
    size = path.stat().st_size
    reader = reader_of(["x"], header="true")
    wanted = pa.schema([("x", pa.int64())])
    halves = (FileSplit(str(path), 0, size // 2), FileSplit(str(path), size // 2, size - size // 2))
    found = [
        value
        for half in halves
        for batch in reader.batches(half, wanted)
        for value in batch.column("x").to_pylist()
    ]
    assert found == list(range(100))


def test_rows_of_which_no_column_is_needed_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n1,a\n\n2,b\n")
    reader = reader_of(["x", "y"], header="true")
    assert [each.num_rows for each in reader.batches(whole(path), pa.schema([]))] == [2]


def test_bounded_places_of_values_are_as_many_as_there_are_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sizes = tmp_path / "wide.csv", list[tuple[int, ...]]()
    path.write_text("".join(f"{'x' * 500},{number}\n" for number in range(100)))

    def found(*given: Any) -> Any:
        sizes.append(given[-1].shape)
        return find_values(*given)

    monkeypatch.setattr("icestream.runtime.ingest.csv.find_values", found)
    reader = CsvReader(("a", "b"), header=False, separator=",", null="", utc=True)
    piece = FileSplit(str(path), 0, path.stat().st_size)
    [rows] = reader.batches(piece, pa.schema([("b", pa.int64())]))
    assert rows.column(0).to_pylist() == list(range(100))
    assert sizes == [(1, 101)]


def test_times_without_a_zone_are_left_to_spark_unless_the_session_is_in_utc(
    tmp_path: Path,
) -> None:
    wanted = pa.schema([("t", pa.timestamp("us", "UTC"))])
    path = tmp_path / "a.csv"
    for text, zone, read_here in (
        ("2020-01-01T00:00:00", "UTC", True),
        ("2020-01-01T00:00:00", "Europe/Berlin", False),
        ("2020-01-01T00:00:00Z", "Europe/Berlin", True),
        ("2020-01-01T00:00:00Z\n2020-01-01T00:00:00", "UTC", False),
    ):
        path.write_text(text + "\n")
        reader = reader_of(["t"], zone)
        if read_here:
            [batch] = reader.batches(whole(path), wanted)
            assert batch.column("t").cast(pa.int64()).to_pylist() == [1_577_836_800_000_000]
        else:
            with pytest.raises(UnlikeSpark):
                list(reader.batches(whole(path), wanted))


@pytest.mark.parametrize(
    ("names", "options", "conf"),
    [
        (["x"], {"quote": "'"}, {}),
        (["x"], {"timestampFormat": "yyyy"}, {}),
        (["x"], {"sep": "||"}, {}),
        (["x"], {"sep": " "}, {}),
        (["x"], {"encoding": "latin1"}, {}),
        (["x", "_corrupt_record"], {}, {}),
        (["x"], {}, {"spark.sql.legacy.timeParserPolicy": "LEGACY"}),
        (["x"], {}, {"spark.sql.csv.parser.columnPruning.enabled": "false"}),
    ],
    ids=str,
)
def test_options_without_an_equal_are_left_to_spark(
    names: list[str], options: dict[str, str], conf: dict[str, str]
) -> None:
    assert CsvReader.of(tuple(names), options, {**CONF, **conf}) is None


def test_types_and_files_without_an_equal_are_left_to_spark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("1\n")
    with pytest.raises(UnlikeSpark):
        list(reader_of(["x"]).batches(whole(path), pa.schema([("x", pa.decimal128(5, 2))])))
    packed = path.rename(tmp_path / "a.csv.gz")
    with pytest.raises(UnlikeSpark):
        list(reader_of(["x"]).batches(whole(packed), pa.schema([("x", pa.int64())])))
