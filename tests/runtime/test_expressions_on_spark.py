"""Expressions on Arrow batches beside the same expressions in Spark, over the same rows."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from icestream.core.errors import DefinitionError, InputError
from icestream.sql.expressions.compile import parse

pytestmark = pytest.mark.spark

ROWS = 400
ZONE = "America/New_York"

NUMBERS = [
    "it + ih", "ii + il", "it * ii", "ii - 7", "il * 3L", "it + 1S", "-ii", "-p", "-d", "abs(il)",
    "abs(p)", "abs(f)", "abs(d)", "ii / ih", "ii / 3", "d / 2", "f / 3", "ih % 7", "il % -3",
    "d % 2.5D", "f % 3", "ii div 3", "il div -7", "p div 3", "f + f", "f + ii", "f * p", "d + 1",
    "try_add(l, l)", "try_add(i, i)", "try_add(t, t)", "try_subtract(l, i)", "try_multiply(l, l)",
    "try_multiply(h, h)", "try_multiply(i, 100000)", "try_divide(i, ii - ii)", "try_divide(l, t)",
    "try_divide(d, d - d)", "try_mod(i, t)", "try_mod(l, -1)", "pmod(ii, 7)", "pmod(-il, 7)",
    "if(t <> 0, l % t, 0)", "if(t <> 0 and i <> 0, t / i, null)", "d * 1e300", "d - d", "f * f",
    "floor(d2)", "ceil(d2)", "floor(p)", "ceil(p)", "floor(q)", "ceil(q)", "floor(f2)", "floor(ii)",
    "round(d2)", "round(d2, 1)", "round(d2, 2)", "round(d2, -1)", "round(d, 3)", "round(f2, 1)",
    "round(p, 1)", "round(p)", "round(p, -1)", "round(q, 5)", "round(q, 20)", "round(ii, -1)",
    "round(ii, 2)", "round(il, -2)", "sign(d)", "sign(ii)", "sign(p)", "ii & 12", "il | ii",
    "ii ^ 5", "~ii", "greatest(ii, il, 3)", "least(d, d2, f)", "greatest(d, d2)", "least(p, ii)",
    "greatest(p, w)", "1.5 + ii", "ii * 2.5", "2 * d", "'3' + ii", "'2.5' * d2", "-'3'", "p + '1'",
    "ii + null", "null / null", "mod(ii, 5)", "1e3 + ii", "-9223372036854775808", "2147483648",
    "isnan(d)", "isnan(f)", "it / 2", "il + p", "d2 * p",
]  # fmt: skip
NEARLY = [
    "sqrt(d)", "sqrt(p)", "exp(d2 / 100)", "ln(d)", "log(d)", "log(2, d)", "log(d2, d)", "log2(d)",
    "log10(d)", "pow(d2, 2)", "pow(d2, 0.5)", "pow(d, d)", "power(ii, 3)", "exp(d)", "log1p(d2)",
    "sin(d2)", "cos(d2)", "atan(d)", "cbrt(d2)", "expm1(d2 / 100)", "degrees(d2)", "tanh(d2)",
    "d2 / sqrt(abs(d2) * 3 + 1)", "atan2(d2, d)", "hypot(d2, f2)", "log(1D, d)",
]  # fmt: skip
DECIMALS = [
    "p + p", "p - w", "w - p", "p * p", "p * w", "w * w", "p + 1", "p * 2", "p / 3",
    "p % 3", "w % p2",
    "p / p2", "w / p2", "p2 / w2", "q / q2", "q * 1.5", "q2 * q2", "q2 + q2", "q2 - 1",
    "q + q2", "p + ii", "ii - p", "il * p", "ii / p2", "p / ii2", "p % ii2", "try_add(q, q)",
    "try_multiply(q, q)", "try_divide(q, q)", "try_divide(p, p - p)", "try_mod(q, p)", "w div p2",
    "p2 * 0.05", "cast(p as decimal(8,0))", "try_cast(q as decimal(10,2))",
    "try_cast(p as decimal(4,2))", "cast(p as double)", "cast(q as double)", "cast(q as float)",
    "cast(p as int)", "try_cast(q as bigint)", "try_cast(q as tinyint)", "cast(p as string)",
    "cast(q as string)", "cast(w as string)", "cast(p as boolean)", "cast(ii as decimal(12,2))",
    "try_cast(l as decimal(10,2))", "try_cast(l as decimal(38,18))",
    "try_cast(d as decimal(20,3))", "try_cast(d2 as decimal(5,1))", "try_cast(f2 as decimal(9,4))",
    "try_cast(d as decimal(38,0))", "cast(b as decimal(3,1))", "p = w", "p < 5", "p >= 2.505",
    "q > p", "p = ii", "q <=> q", "p <= d", "p in (1.5, 2, null)", "coalesce(p, 1)",
    "coalesce(p, 1.123)", "coalesce(ii, p)", "coalesce(ii, '1', p)", "coalesce(p, d)",
    "nullif(p, 0)", "if(b, p, ii)", "case when b then 1 else 2.5 end", "p * 2L", "p * 2BD",
    "p * -2", "p + 100000", "q % 7", "w * 1000000000000",
]  # fmt: skip
COMPARISONS = [
    f"{a} {sign} {b}"
    for sign in ("=", "<>", "<", "<=", ">", ">=", "<=>")
    for a, b in (
        ("d", "d3"), ("d", "0"), ("d", "double('nan')"), ("f", "f3"), ("f", "d"), ("ii", "it"),
        ("l", "d"), ("s", "s2"), ("s", "'b'"), ("b", "b2"), ("ts", "ts2"), ("ts", "dt"),
        ("dt", "'2024-02-29'"), ("ts", "'2024-01-01 05:00:00'"), ("n", "n"), ("n", "ts"),
        ("bin", "bin"), ("ii", "'3'"), ("d2", "'2.5'"), ("dur", "interval 1 hour"), ("b", "'true'"),
        ("ii", "null"), ("st.a", "ii"), ("null", "null"),
    )
]  # fmt: skip
COMPARISONS += [
    "b and b2", "b or b2", "not b", "b and null", "b or null", "null and null",
    "not (b and not b2)",
    "ii is null", "ii is not null", "b is true", "b is not false", "b is false", "st is null",
    "ii in (1, 2, 3)", "ii in (1, null)", "ii not in (1, 2)", "ii not in (1, null)",
    "d in (0, 1.5D)",
    "d in (double('nan'), 2)", "s in ('a', 'b')", "s in (s2, 'a')", "ii in (il, it, 3)",
    "s not in ('a', null)", "ii in ('1', '2')", "null in (1, 2)", "dt in ('2024-02-29')",
    "ii between 1 and 5", "ii not between it and 5", "d between 0 and 1e10", "ii in (1L, 2.5)",
    "s between 'a' and 'b'", "ii > 3 and s is not null", "l % 2 = 0", "isnull(s)", "isnotnull(d)",
    "s is distinct from s2", "b = (ii > 2)", "dt between '2024-01-01' and '2024-12-31'",
]  # fmt: skip
CHOICES = [
    "case when b then 1 when b2 then 2 end", "case ii when 1 then 'x' when 2 then 'y' else s end",
    "if(b, s, s2)", "if(b, null, ii)", "if(b, ii, l)", "if(b, f, ii)", "if(b, dt, ts)",
    "coalesce(ii, il)", "coalesce(s, s2, 'none')", "coalesce(null, d)", "coalesce(st, st)",
    "nvl(ii, 0)", "ifnull(d, 0)", "nvl2(ii, s, 'z')", "nullif(ii, 3)", "nullif(s, 'a')",
    "nullif(d, double('nan'))", "nullif(null, 1)", "case when ii <> 0 then 100 / ii end",
    "if(ii = 0, null, 100 % ii)", "ii <> 0 and 10 / ii > 1", "ii = 0 or 10 / ii > 1",
    "coalesce(ii, il / ih)", "st.a", "st.b", "st.A + 1",
    "coalesce(st.b, s)", "greatest(s, s2)", "least(s, s2, 'm')", "greatest(b, b2)",
    "greatest(dt, dt2)", "least(ts, ts2)", "greatest(ts, dt)", "greatest(null, ii)",
    "greatest(dur, interval 1 day)", "struct(ii, s)", "named_struct('x', ii, 'y', s)",
    "case when b then st end", "if(b, bin, bin)", "`ii`", "II",
    "case b when true then 1 else 0 end",
    "case when s = 'a' then 1 / 1 when s = 'b' then 2.5 end", "named_struct('x', ii).x",
]  # fmt: skip
TEXT = [
    "concat(s, s2)", "s || '-' || s2", "concat(s, ii, b)", "concat(bin, bin)", "concat(s, null)",
    "concat_ws(',', s, s2, 'x')", "concat_ws('-', s)", "length(s)", "length(bin)", "length(ii)",
    "lower(s)", "upper(s)", "reverse(s)", "substring(s, 2, 2)", "substring(s, 0, 2)",
    "substring(s, -2, 5)", "substring(s, -2, 1)", "substring(s, 2)", "substring(s, -9, 8)",
    "substring(s, 1, 0)", "substring(s, 1, -1)", "substr(s, 3)", "left(s, 2)", "right(s, 2)",
    "left(s, 0)", "right(s, -1)", "trim(s)", "ltrim(s)", "rtrim(s)", "trim(both 'a' from s)",
    "trim('ab', s)", "ltrim('a', s)", "trim(trailing 'b' from s)", "trim(leading from s)",
    "startswith(s, 'a')", "endswith(s, 'b')", "contains(s, 'b')", "contains(s, '')",
    "s like 'a%'", "s like '%b'", "s like '_b%'", "s not like 'a%'", "s like ''", "s like '%'",
    r"s like 'a\\%b'", "s like 'a/_b' escape '/'", "s like 'a.b'", "ii like '1%'",
    "replace(s, 'a', 'xy')", "replace(s, 'a')", "replace(s, '', 'x')", "instr(s, 'b')",
    "instr(s, '')", "'it''s'", r"'tab\tnew\nline'", "'a' 'b'", '"quoted"', "s = \"a\"",
    "substring(s from 2 for 3)", "char_length(s)",
]  # fmt: skip
CASTS = [
    f"try_cast({a} as {kind})"
    for a in ("t", "i", "l", "f", "d", "d2", "b", "num", "s")
    for kind in ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean",
                 "decimal(10,3)")
]  # fmt: skip
CASTS += [
    *(
        f"cast({a} as string)"
        for a in ("t", "i", "l", "b", "d2", "d4", "f2", "ts", "n", "dt", "bin")
    ),
    *(f"try_cast(moment as {kind})" for kind in ("date", "timestamp", "timestamp_ntz")),
    "cast(d4 as float)", "cast(s as binary)", "int(ii)", "string(ii)", "double(ii)", "ii::bigint",
    "cast(num as string)", "cast(true as int)", "cast(null as int)", "cast(d as float)",
]  # fmt: skip
TIMES = [
    "unix_micros(ts)", "unix_millis(ts)", "unix_seconds(ts)", "timestamp_micros(il)",
    "timestamp_millis(ii)", "timestamp_seconds(ii)", "timestamp_micros(1000000)",
    *(
        f"date_trunc('{unit}', ts)"
        for unit in ("year", "quarter", "month", "WEEK", "day", "hour", "minute", "second",
                     "millisecond", "microsecond", "MM", "dd")
    ),
    "date_trunc('day', dt)", "date_trunc('day', '2024-02-29 10:00:00')", "trunc(dt, 'month')",
    "trunc(dt, 'week')", "trunc(dt, 'year')",
    *(
        f"date_format({a}, '{pattern}')"
        for pattern in ("yyyy-MM-dd", "HH:mm", "yyyy/MM/dd HH:mm:ss", "dd.MM.yyyy", "ss", "yyyy")
        for a in ("ts", "dt", "n")
    ),
    *(
        f"{part}({a})"
        for part in ("year", "quarter", "month", "day", "dayofmonth", "dayofyear", "dayofweek",
                     "weekday", "weekofyear", "hour", "minute", "second")
        for a in ("ts", "dt", "n")
    ),
    "extract(year from ts)", "extract(hour from ts)", "to_date(ts)", "to_timestamp(dt)",
    "to_date('2024-02-29')", "date_add(dt, 3)", "date_sub(dt, ih)", "dt + 1", "dt - it",
    "1 + dt", "datediff(dt, dt2)", "dt - dt2", "ts - ts2", "ts - dt", "ts - '2024-01-01'",
    "ts + interval 5 minutes", "ts - interval '1 02:03:04.5' day to second", "dt + interval 2 days",
    "dt + interval '36' hour", "dt - interval 1 week", "n + interval 1 day", "ts + dur",
    "dur + dur",
    "dur - interval '1' day", "dur * 2", "3 * dur", "-dur", "abs(dur)", "interval 1 hour + ts",
    "ts + interval 1 day", "ts + interval '30' hour", "dur = interval 1 hour",
    "interval 1 hour 30 minutes", "interval '1 day 2 hours'", "interval -3 minutes",
    "timestamp '2024-02-29 10:11:12.5'", "date '2024-02-29'", "timestamp_ntz '2024-02-29 01:02:03'",
    "timestamp '2024-02-29T10:00:00Z'", "timestamp '2024-02-29 10:00:00+05:30'",
    "cast(ts as bigint)", "cast(ts as double)", "cast(ts as decimal(20,6))",
    "cast(ii as timestamp)",
    "cast(d2 as timestamp)", "cast(p as timestamp)", "cast(ts as date)", "cast(dt as timestamp)",
    "cast(ts as timestamp_ntz)", "cast(n as timestamp)", "cast(n as date)",
    "cast(dt as timestamp_ntz)", "cast(ts as string)", "cast(dt as string)", "cast(n as string)",
    "try_cast(moment as timestamp)", "try_cast(moment as date)", "ts > '2024-03-10 02:30:00'",
    "coalesce(dt, ts)", "timestamp '2024-03-10 02:30:00'", "timestamp '2024-11-03 01:30:00'",
]  # fmt: skip
TABLES = (NUMBERS, NEARLY, DECIMALS, COMPARISONS, CHOICES, TEXT, CASTS, TIMES)

_TIMES = [
    dt.datetime(2024, 3, 10, 6, 59, 59, 999999), dt.datetime(2024, 3, 10, 7),
    dt.datetime(1970, 1, 1),
    dt.datetime(2024, 11, 3, 5, 30), dt.datetime(2024, 11, 3, 6, 30), dt.datetime(1969, 12, 31, 23),
    dt.datetime(2024, 2, 29, 12, 34, 56, 120000), dt.datetime(1950, 7, 4, 1, 2, 3),
    dt.datetime(2036, 12, 31, 23, 59, 59, 1), dt.datetime(2024, 3, 9, 7, 30),
    dt.datetime(2045, 7, 4, 1, 2, 3), dt.datetime(2045, 11, 5, 6, 30),
]  # fmt: skip
_DAYS = [dt.date(2024, 2, 29), dt.date(1970, 1, 1), dt.date(1960, 12, 31), dt.date(2024, 3, 10)]
_DOUBLES = [
    0.0,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    1.5,
    -2.5,
    1e300,
    -1e-300,
    5e-324,
    2.0**53,
    1.0,
]
_TEXTS = [
    "a", "b", "", "ab", "a%b", "a_b", "axb", " a ", "\ta\n", "aab", "Éa", "😀b€", "ABC", "a.b", "m",
]  # fmt: skip
_NUMBERS = [
    "1", "-5", " 12 ", "+7", "1.5", "1e2", "abc", "", "127", "128", "-129", "2147483648", "1e400",
    "9223372036854775808", "-9223372036854775808", "99999999999999999999999", "inf", "-Infinity",
    "NaN", "nan", ".5", "5.", ".", "1.5d", "0x10", "true", "F", "yes", "0", "1 2", "1e", "--1",
    "0000000000000000000000000012", "1234567.8915", "1.00050", "-0.0005", "1e-30",
    "12e-1", "+", "5L",
]  # fmt: skip
_MOMENTS = [
    "2024-02-29", "2024-02-30", "2024-1-5", "2024", "2024-03", "2024-03-10 02:30:00",
    "2024-11-03 01:30:00", "2024-01-05T10:00:00Z", "2024-01-05 10:00:00+05:30", "x", "",
    " 2024-01-05 ",
    "2024-01-05 10:00:00.1234567", "2024-01-05 10", "2024-01-05 10:11", "2024-13-01", "2024-01-05x",
    "2024-01-05 25:00:00", "1969-12-31 23:59:59.5", "2024-01-05 10:00:00-08:00", "2024-01-05 1:2:3",
    "2024-01-05T10:11:12.5 UTC", "2023-02-29", "0001-01-01", "2024-00-10", "2045-03-12 02:30:00",
    "2045-07-04 12:00:00",
]  # fmt: skip


def _batch(seed: int = 3) -> pa.RecordBatch:
    """Return rows of all types: special values first in line, NULL everywhere now and then."""
    dice = np.random.default_rng(seed)

    def drawn(kind: pa.DataType, values: list[Any], nulls: float = 0.15) -> pa.Array:
        picks = [values[at] for at in dice.integers(0, len(values), ROWS)]
        gone = dice.random(ROWS) < nulls
        kept = [None if none else value for value, none in zip(picks, gone, strict=True)]
        return pa.array(kept, kind)

    def wholes(bits: int) -> list[int]:
        top = 2 ** (bits - 1)
        return [0, 1, -1, top - 1, -top, 7, *map(int, dice.integers(-top, top, 20))]

    def few(low: int, high: int) -> list[int]:
        return list(map(int, dice.integers(low, high, 40)))

    def parts(digits: int, scale: int, count: int = 30) -> list[Decimal]:
        sizes = dice.integers(1, digits + 1, count)
        return [
            Decimal(int("".join(map(str, dice.integers(0, 10, size))))).scaleb(-scale)
            * int(dice.choice([-1, 1]))
            for size in sizes
        ]

    zoned, local = pa.timestamp("us", "UTC"), pa.timestamp("us")
    d2 = [
        *map(float, np.round(dice.uniform(-1000, 1000, 30), 3)),
        2.5,
        -2.5,
        1.005,
        0.125,
        2.675,
        0.5,
    ]
    columns = {
        "t": drawn(pa.int8(), wholes(8)), "h": drawn(pa.int16(), wholes(16)),
        "i": drawn(pa.int32(), wholes(32)), "l": drawn(pa.int64(), wholes(64)),
        "it": drawn(pa.int8(), few(-10, 11)), "ih": drawn(pa.int16(), few(1, 90)),
        "ii": drawn(pa.int32(), [0, 1, 2, 3, *few(-90, 90)]), "ii2": drawn(pa.int32(), few(1, 9)),
        "il": drawn(pa.int64(), few(-10**6, 10**6)),
        "f": drawn(pa.float32(), [*_DOUBLES[:7], 3.25, 1e10]),
        "f2": drawn(pa.float32(), d2),
        "f3": drawn(pa.float32(), [*_DOUBLES[:7], 3.25]),
        "d": drawn(pa.float64(), _DOUBLES), "d2": drawn(pa.float64(), d2),
        "d3": drawn(pa.float64(), _DOUBLES),
        "d4": drawn(pa.float64(), [1e7, 123456.75, 1e-3, 9.99e-4, 1e21, -1.5e-10, 12345678.9, 1e16,
                                   *_DOUBLES[:7], 1e300]),
        "p": drawn(pa.decimal128(9, 2), [*parts(9, 2), Decimal("0.00"), Decimal("2.50")]),
        "p2": drawn(pa.decimal128(9, 2), [abs(each) + 1 for each in parts(7, 2)]),
        "w": drawn(pa.decimal128(20, 4), parts(18, 4)),
        "w2": drawn(pa.decimal128(20, 4), [abs(each) + 1 for each in parts(18, 4)]),
        "q": drawn(pa.decimal128(38, 18), parts(38, 18)),
        "q2": drawn(pa.decimal128(38, 18), [abs(each) + 1 for each in parts(23, 18)]),
        "s": drawn(pa.string(), _TEXTS), "s2": drawn(pa.string(), _TEXTS),
        "b": drawn(pa.bool_(), [True, False]), "b2": drawn(pa.bool_(), [True, False]),
        "ts": drawn(zoned, _TIMES), "ts2": drawn(zoned, _TIMES), "n": drawn(local, _TIMES),
        "dt": drawn(pa.date32(), _DAYS), "dt2": drawn(pa.date32(), _DAYS),
        "dur": drawn(pa.duration("us"), [dt.timedelta(0), dt.timedelta(hours=1),
                                         dt.timedelta(days=-2, seconds=5, microseconds=7)]),
        "bin": drawn(pa.binary(), [b"", b"\0\1", b"abc"]),
        "num": drawn(pa.string(), _NUMBERS), "moment": drawn(pa.string(), _MOMENTS),
        "st": drawn(pa.struct([("a", pa.int32()), ("b", pa.string())]),
                    [{"a": 1, "b": "x"}, {"a": None, "b": "y"}, {"a": 3, "b": None}]),
    }  # fmt: skip
    return pa.RecordBatch.from_pydict(columns)


def _answers(spark: SparkSession, batch: pa.RecordBatch, texts: list[str]) -> dict[str, pa.Array]:
    """Return what Spark computes, in one job for all expressions."""
    numbered = pa.Table.from_batches([batch]).append_column("row", pa.array(range(ROWS)))
    # Spark takes local timestamps of Arrow for others: they travel as numbers
    at = numbered.schema.get_field_index("n")
    numbered = numbered.set_column(at, "n", numbered.column("n").cast(pa.int64()))
    local = "timestamp_ntz '1970-01-01' + n * interval '0.000001' second"
    frame = spark.createDataFrame(numbered).withColumn("n", sf.expr(local))
    chosen = [f"{text} AS c{at}" for at, text in enumerate(texts)]
    table = frame.selectExpr(*chosen, "row").toArrow().sort_by("row")
    columns = [table.column(f"c{at}").combine_chunks() for at in range(len(texts))]
    return {text: c.cast(_plain(c.type)) for text, c in zip(texts, columns, strict=True)}


@pytest.fixture(scope="module")
def batch() -> pa.RecordBatch:
    return _batch()


@pytest.fixture(scope="module")
def answers(spark: SparkSession, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    # one job per table: one for all takes Spark longer to plan than all of these
    found: dict[str, pa.Array] = {}
    for texts in TABLES:
        found |= _answers(spark, batch, texts)
    return found


@pytest.fixture
def in_new_york(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(before))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without what Spark and Arrow write differently."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    return kind


def _same(a: Any, b: Any, near: float) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        close = near and math.isclose(a, b, rel_tol=near)
        return bool(a == b or (a != a and b != b) or close)
    return bool(a == b)


def _differences(
    batch: pa.RecordBatch, texts: list[str], answers: Mapping[str, pa.Array], *, zone: str = "UTC",
    near: float = 0.0,
) -> list[str]:  # fmt: skip
    """Return every expression whose type or a value differs from Spark's, with the first one."""
    found = []
    for text in texts:
        spark = answers[text]
        try:
            bound = parse(text).bind(batch.schema, zone=zone)
            ours = bound.evaluate(batch)
        except (DefinitionError, InputError) as error:
            found.append(f"{text}: {error}")
            continue
        if not _plain(ours.type).equals(_plain(spark.type)) or ours.type != bound.type:
            found.append(f"{text}: type {ours.type}, bound as {bound.type}, of Spark {spark.type}")
            continue
        if ours.null_count and not bound.nullable:
            found.append(f"{text}: NULL in spite of its type")
        pairs = zip(ours.cast(_plain(ours.type)).to_pylist(), spark.to_pylist(), strict=True)
        wrong = [(row, a, b) for row, (a, b) in enumerate(pairs) if not _same(a, b, near)]
        if wrong:
            row, a, b = wrong[0]
            needed = {name: batch.column(name)[row].as_py() for name in bound.columns}
            found.append(f"{text}: {len(wrong)} rows, first {a!r} instead of {b!r} for {needed}")
    return found


def test_oracle_numbers(batch: pa.RecordBatch, answers: dict[str, pa.Array]) -> None:
    assert _differences(batch, NUMBERS, answers) == []
    assert _differences(batch, NEARLY, answers, near=1e-13) == []


def test_oracle_decimals_are_exact(batch: pa.RecordBatch, answers: dict[str, pa.Array]) -> None:
    assert _differences(batch, DECIMALS, answers) == []


def test_oracle_comparisons(batch: pa.RecordBatch, answers: dict[str, pa.Array]) -> None:
    assert _differences(batch, COMPARISONS, answers) == []


def test_oracle_choices(batch: pa.RecordBatch, answers: dict[str, pa.Array]) -> None:
    assert _differences(batch, CHOICES, answers) == []


def test_oracle_text(batch: pa.RecordBatch, answers: dict[str, pa.Array]) -> None:
    assert _differences(batch, TEXT, answers) == []


def test_oracle_casts(batch: pa.RecordBatch, answers: dict[str, pa.Array]) -> None:
    assert _differences(batch, CASTS, answers) == []


def test_oracle_times(batch: pa.RecordBatch, answers: dict[str, pa.Array]) -> None:
    assert _differences(batch, TIMES, answers) == []


def test_oracle_zones_with_summer_time(in_new_york: SparkSession, batch: pa.RecordBatch) -> None:
    answers = _answers(in_new_york, batch, TIMES)
    assert _differences(batch, TIMES, answers, zone=ZONE) == []


KINDS = {
    "t": pa.int8(), "h": pa.int16(), "i": pa.int32(), "l": pa.int64(), "f": pa.float32(),
    "d": pa.float64(), "p": pa.decimal128(9, 2), "q": pa.decimal128(38, 18), "s": pa.string(),
    "b": pa.bool_(), "ts": pa.timestamp("us", "UTC"), "dt": pa.date32(), "dur": pa.duration("us"),
    "bin": pa.binary(), "x": pa.decimal128(38, 0), "y": pa.decimal128(38, 38),
}  # fmt: skip
OPERATORS = (
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / {b}", "{a} % {b}", "{a} div {b}", "{a} = {b}",
    "coalesce({a}, {b})", "greatest({a}, {b})", "nullif({a}, {b})", "if(b, {a}, {b})",
    "case when b then {a} when not b then {b} else {a} end", "{a} + 1", "{a} * 2.5",
    "coalesce({a}, null, {b}, 1)",
)  # fmt: skip


def test_oracle_results_have_the_types_of_spark(spark: SparkSession) -> None:
    schema = pa.schema(list(KINDS.items()))
    texts = {op.format(a=a, b=b) for op in OPERATORS for a in KINDS for b in KINDS}
    ours = {}
    for text in sorted(texts):
        try:
            ours[text] = parse(text).bind(schema).type
        except DefinitionError:
            continue
    assert len(ours) > 1000
    empty = spark.createDataFrame(schema.empty_table())
    frame = empty.selectExpr(*(f"{text} AS c{at}" for at, text in enumerate(ours)))
    found = zip(ours.items(), frame.toArrow().schema, strict=True)
    wrong = [
        f"{text}: {kind} instead of {field.type}"
        for (text, kind), field in found
        if _plain(kind) != _plain(field.type)
    ]
    assert wrong == []
