"""The answers of Nexmark's statements over finite data, by DuckDB.

Idea: each statement is written once more, in DuckDB's dialect: windows become joins with their
starts, sessions become gaps between rows. q12 goes by processing time: only the bids of each bidder
are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

Rows = Counter[tuple[Any, ...]]

_RANKS = """
    count(*) FILTER (price < 10000), count(*) FILTER (price >= 10000 AND price < 1000000),
    count(*) FILTER (price >= 1000000)
"""
_DISTINCT = ", ".join(
    f"""count(DISTINCT {column}), count(DISTINCT {column}) FILTER (price < 10000),
    count(DISTINCT {column}) FILTER (price >= 10000 AND price < 1000000),
    count(DISTINCT {column}) FILTER (price >= 1000000)"""
    for column in ("bidder", "auction")
)
_HOPS = """
    SELECT auction, count(*) AS num, s FROM (
        SELECT auction, unnest(generate_series(
            time_bucket(INTERVAL 2 SECOND, "dateTime") - INTERVAL 8 SECOND,
            time_bucket(INTERVAL 2 SECOND, "dateTime"), INTERVAL 2 SECOND)) AS s FROM bid)
    GROUP BY auction, s
"""
_IN_TIME = """A.id = B.auction AND B."dateTime" BETWEEN A."dateTime" AND A.expires"""
_CHANNEL = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"

STATEMENTS: Mapping[str, str] = {
    "q0": 'SELECT auction, bidder, price, "dateTime", extra FROM bid',
    "q1": 'SELECT auction, bidder, 0.908 * price, "dateTime", extra FROM bid',
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')
    """,
    "q4": f"""
        SELECT category, avg(final) FROM (
            SELECT max(B.price) AS final, A.id, A.category FROM auction A JOIN bid B ON {_IN_TIME}
            GROUP BY A.id, A.category)
        GROUP BY category
    """,
    "q5": f"""
        WITH hops AS ({_HOPS})
        SELECT auction, num FROM hops
        JOIN (SELECT s, max(num) AS most FROM hops GROUP BY s) USING (s) WHERE num >= most
    """,
    "q6": f"""
        SELECT seller, avg(price) OVER (PARTITION BY seller ORDER BY "dateTime"
            ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) FROM (
            SELECT A.seller, B.price, B."dateTime", row_number() OVER
                (PARTITION BY A.id, A.seller ORDER BY B.price DESC) AS place
            FROM auction A JOIN bid B ON {_IN_TIME})
        WHERE place = 1
    """,
    "q7": """
        SELECT B.auction, B.price, B.bidder, B."dateTime", B.extra FROM bid B JOIN (
            SELECT max(price) AS most, time_bucket(INTERVAL 10 SECOND, "dateTime") AS s
            FROM bid GROUP BY s) W
        ON B.price = W.most AND B."dateTime" BETWEEN s AND s + INTERVAL 10 SECOND
    """,
    "q8": """
        SELECT P.id, P.name, P.s FROM (
            SELECT DISTINCT id, name, time_bucket(INTERVAL 10 SECOND, "dateTime") AS s
            FROM person) P
        JOIN (SELECT DISTINCT seller, time_bucket(INTERVAL 10 SECOND, "dateTime") AS s
            FROM auction) A
        ON P.id = A.seller AND P.s = A.s
    """,
    "q9": f"""
        SELECT * EXCLUDE (place) FROM (
            SELECT A.*, B.auction, B.bidder, B.price, B."dateTime" AS bt, B.extra AS be,
                row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B."dateTime") AS place
            FROM auction A JOIN bid B ON {_IN_TIME})
        WHERE place = 1
    """,
    "q10": """
        SELECT auction, bidder, price, "dateTime", extra, strftime("dateTime", '%Y-%m-%d'),
            strftime("dateTime", '%H:%M') FROM bid
    """,
    "q11": """
        WITH gaps AS (
            SELECT bidder, "dateTime" AS t, coalesce("dateTime" - lag("dateTime") OVER
                (PARTITION BY bidder ORDER BY "dateTime") > INTERVAL 10 SECOND, true) AS opens
            FROM bid),
        runs AS (SELECT *, count(*) FILTER (opens) OVER (PARTITION BY bidder ORDER BY t) AS run
            FROM gaps)
        SELECT bidder, count(*), min(t), max(t) + INTERVAL 10 SECOND FROM runs GROUP BY bidder, run
    """,
    "q12": "SELECT bidder, count(*) FROM bid GROUP BY bidder",
    "q13": """
        SELECT auction, bidder, price, "dateTime", value FROM bid JOIN side_input
        ON auction % 10000 = key
    """,
    "q14": """
        SELECT auction, bidder, 0.908 * price, CASE
            WHEN hour("dateTime") BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN hour("dateTime") <= 6 OR hour("dateTime") >= 20 THEN 'nightTime'
            ELSE 'otherTime' END,
            "dateTime", extra, len(extra) - len(replace(extra, 'c', ''))
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
    """,
    "q15": f"""
        SELECT strftime("dateTime", '%Y-%m-%d') AS d, count(*), {_RANKS}, {_DISTINCT}
        FROM bid GROUP BY d
    """,
    "q16": f"""
        SELECT channel, strftime("dateTime", '%Y-%m-%d') AS d, max(strftime("dateTime", '%H:%M')),
            count(*), {_RANKS}, {_DISTINCT}
        FROM bid GROUP BY channel, d
    """,
    "q17": f"""
        SELECT auction, strftime("dateTime", '%Y-%m-%d') AS d, count(*), {_RANKS}, min(price),
            max(price), avg(price), sum(price)
        FROM bid GROUP BY auction, d
    """,
    "q18": """
        SELECT * EXCLUDE (place) FROM (
            SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY "dateTime" DESC)
                AS place FROM bid)
        WHERE place = 1
    """,
    "q19": """
        SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC)
            AS place FROM bid)
        WHERE place <= 10
    """,
    "q20": """
        SELECT B.*, A.* EXCLUDE (id) FROM bid B JOIN auction A ON B.auction = A.id
        WHERE A.category = 10
    """,
    "q21": f"""
        SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0'
            WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE {_CHANNEL} END
        FROM bid WHERE {_CHANNEL} IS NOT NULL
            OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')
    """,
    "q22": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4), split_part(url, '/', 5),
            split_part(url, '/', 6)
        FROM bid
    """,
}


#: columns of rows that orders with ties determine, or that do not depend on processing time
DETERMINED = {"q9": (0, 12, 13), "q18": (0, 1, 5), "q19": (0, 2, 7)}
#: averages of whole numbers, which are whole numbers in Flink
WHOLE = {"q4": 1, "q17": 8}


def answer(number: str, tables: Mapping[str, pa.Table]) -> Rows:
    """Return how often each row is in the answer of a statement."""
    with duckdb.connect() as database:
        for name, table in tables.items():
            database.register(name, without_zone(table))
        return bag(database.execute(STATEMENTS[number]).fetchall())


def other_rows(number: str, rows: Rows, wanted: Rows) -> int:
    """Return how many rows of an answer are missing, and how many are too many."""
    found, wanted = determined(number, rows), determined(number, wanted)
    return (found - wanted).total() + (wanted - found).total()


def determined(number: str, rows: Rows) -> Rows:
    """Leave out what ties may decide either way, and add up the windows of processing time."""
    result: Rows = Counter()
    if number == "q12":
        for (bidder, bids, *_), count in rows.items():
            result[bidder] += bids * count
        return result
    chosen = DETERMINED.get(number)
    if chosen is None:
        return rows
    for row, count in rows.items():
        result[tuple(row[place] for place in chosen)] += count
    return result


def flinks(number: str, rows: Rows) -> Rows:
    """Return an answer as Flink's types and JSON have it."""
    result: Rows = Counter()
    for row, count in rows.items():
        values = [str(each) if isinstance(each, datetime) else each for each in row]
        if number in WHOLE:
            values[WHOLE[number]] = int(values[WHOLE[number]])
        result[tuple(values)] += count
    return result


def bag(rows: list[tuple[Any, ...]]) -> Rows:
    """Count rows whose values do not depend on the engine's types."""
    return Counter(tuple(map(plain, row)) for row in rows)


def plain(value: Any) -> Any:
    """Return a value with decimals as floats and times without a zone."""
    if isinstance(value, Decimal | float):
        return round(float(value), 6)
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def without_zone(table: pa.Table) -> pa.Table:
    """Return a table whose times have no zone."""
    fields = [
        each.with_type(pa.timestamp("us")) if pa.types.is_timestamp(each.type) else each
        for each in table.schema
    ]
    return table.cast(pa.schema(fields))
