"""Random statements over two streams and a table, in our dialect and in DuckDB's.

Idea: a seed names a statement. Statements nest: what one grammar rule makes, another reads. Orders
are total, so that every engine has to give the same rows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

_T = TypeVar("_T")
SECOND = 1_000_000
START = 1_700_000_000 * SECOND
_JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
_WINDOWS = ("tumble", "hop", "cumulate")
_BUCKET = "time_bucket(INTERVAL {} SECOND, ts)"


@dataclass(frozen=True)
class RandomStatement:
    """A statement, and the same for DuckDB."""

    text: str
    duckdb: str


def random_tables(seed: int, rows: int = 60) -> dict[str, pa.Table]:
    """Return small tables with nulls, duplicates and skew; times differ."""
    dice = np.random.default_rng(seed)
    tables = {}
    times = START + dice.permutation(40_000)[: 2 * rows] * 1_000
    for place, name in enumerate("ab"):
        own = np.sort(times[place * rows : (place + 1) * rows])
        keys = np.minimum(dice.integers(0, 8, rows), dice.integers(0, 8, rows))
        values = dice.integers(-2, 8, rows)
        tables[name] = pa.table(
            {
                "ts": pa.array(own).cast(pa.timestamp("us", "UTC")),
                "k": pa.array([None if key == 5 else int(key) for key in keys], pa.int64()),
                "v": pa.array([None if v == 7 else int(v) for v in values], pa.int64()),
                "x": pa.array(dice.integers(0, 40, rows) / 4),
                "word": [["ice", "sea", "Fog", "", None][i] for i in dice.integers(0, 5, rows)],
            }
        )
    tables["t"] = pa.table(
        {"key": [0, 1, 2, 2, None], "title": ["zero", "one", "two", None, "none"]}
    )
    return tables


def random_statement(seed: int) -> RandomStatement:
    """Return the statement of a seed."""
    return _Grammar(random.Random(f"statement {seed}")).statement()


class _Grammar:
    """Makes statements; pairs of texts are ours and DuckDB's."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._names = 0

    def statement(self) -> RandomStatement:
        """Return a statement of any kind."""
        kinds = (
            self._rows, self._rows, self._joined, self._joined, self._grouped, self._grouped,
            self._of_groups, self._top, self._windowed, self._windowed, self._united, self._framed,
            self._sets, self._session, self._distinct, self._bounded, self._bounded, self._limited,
        )  # fmt: skip
        ours, theirs = self._pick(kinds)()
        theirs = theirs.replace("LEFT SEMI", "SEMI").replace("LEFT ANTI", "ANTI")
        return RandomStatement(ours, theirs)

    def _pick(self, choices: Sequence[_T]) -> _T:
        return self._dice.choice(choices)

    def _chance(self, share: float) -> bool:
        return self._dice.random() < share

    def _name(self) -> str:
        self._names += 1
        return f"q{self._names}"

    # -- pieces ----------------------------------------------------------------------------

    def _number(self, of: str) -> str:
        value = self._pick((
            f"{of}.v", f"{of}.v", f"{of}.k", f"{of}.v + {of}.k", f"coalesce({of}.v, -1)",
            f"CASE WHEN {of}.v > 2 THEN {of}.k WHEN {of}.v < 0 THEN 9 END", f"abs({of}.v) % 3",
            f"nullif({of}.v, 3)", f"length({of}.word)",
        ))  # fmt: skip
        return str(value)

    def _condition(self, of: str) -> str:
        value = self._pick((
            f"{of}.v > {self._dice.randint(-2, 6)}", f"{of}.k = {self._dice.randint(0, 4)}",
            f"{of}.v IS NULL OR {of}.k > 1", f"{of}.word <> 'ice'", f"{of}.v BETWEEN 0 AND 5",
            f"NOT ({of}.v = 3)", f"{of}.k IN (0, 1, 4)", f"{of}.v NOT IN (1, 2)",
            f"{of}.word LIKE '%e%' OR {of}.x > 5", f"coalesce({of}.v, 4) = 4",
            f"({of}.v > 1 AND {of}.k < 3) OR {of}.x < 2.5", f"{of}.k IS NOT NULL",
        ))  # fmt: skip
        return f"({value})"

    def _nested(self, of: str) -> str:
        """Return a condition with a query inside."""
        inner = self._name()
        where = f" WHERE {self._condition(inner)}" if self._chance(0.8) else ""
        table = self._pick("ab")
        value = self._pick((
            f"{of}.v IN (SELECT {self._number(inner)} FROM {table} {inner}{where})",
            f"{of}.v NOT IN (SELECT {self._number(inner)} FROM {table} {inner}{where})",
            f"{of}.k NOT IN (SELECT {inner}.k FROM {table} {inner} WHERE {inner}.k > 2)",
            f"EXISTS (SELECT 1 FROM {table} {inner} WHERE {inner}.k = {of}.k AND "
            f"{self._condition(inner)})",
            f"NOT EXISTS (SELECT 1 FROM {table} {inner} WHERE {inner}.k = {of}.k AND "
            f"{inner}.v > {of}.v AND {self._condition(inner)})",
            f"{of}.v > (SELECT avg({inner}.v) FROM {table} {inner}{where})",
            f"{of}.v <= (SELECT max({inner}.v) FROM {table} {inner} WHERE {inner}.k = {of}.k AND "
            f"{self._condition(inner)})",
            f"2 < (SELECT count(*) FROM {table} {inner} WHERE {inner}.word = {of}.word AND "
            f"{self._condition(inner)})",
            f"({self._condition(of)} OR {of}.v IN (SELECT {self._number(inner)} FROM {table} "
            f"{inner}{where}))",
            f"({self._condition(of)} OR NOT EXISTS (SELECT 1 FROM {table} {inner} WHERE "
            f"{inner}.v = {of}.v AND {self._condition(inner)}))",
            f"{of}.v NOT IN (SELECT {self._number(inner)} FROM {table} {inner} WHERE "
            f"{inner}.k = {of}.k AND {self._condition(inner)})",
            f"{of}.v < (SELECT max({self._number(inner)}) - 1 FROM {table} {inner}{where})",
            f"{of}.k IN (SELECT {inner}.k FROM {table} {inner} GROUP BY {inner}.k HAVING "
            f"count(*) > {self._dice.randint(2, 14)})",
        ))  # fmt: skip
        return str(value)

    def _where(self, of: str, nested: float = 0.5) -> str:
        parts = [self._condition(of) for _ in range(self._dice.randint(0, 2))]
        if self._chance(nested):
            parts.append(self._nested(of))
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def _source(self, of: str) -> str:
        """Return rows with the columns of the streams."""
        table, other = self._pick((("a", "b"), ("b", "a")))
        kind = self._dice.randint(0, 5)
        if kind < 3:
            return f"{table} {of}"
        inner = self._name()
        if kind == 3:
            return f"(SELECT * FROM {table} {inner}{self._where(inner, 0.2)}) {of}"
        if kind == 4:
            return f"(SELECT ts, k, v + 1 AS v, x, upper(word) AS word FROM {table}) {of}"
        return (
            f"(SELECT ts, k, v, x, word FROM {table} UNION ALL SELECT ts, k, v, x, word "
            f"FROM {other} {inner} WHERE {self._condition(inner)}) {of}"
        )

    def _call(self, of: str) -> str:
        value = self._pick((
            "count(*)", f"count({of}.v)", f"sum({self._number(of)})", f"avg({of}.v)",
            f"min({of}.x)", f"max({self._number(of)})", f"min({of}.word)", f"max({of}.word)",
            f"count(DISTINCT {of}.v)", f"sum({of}.v) FILTER (WHERE {self._condition(of)})",
            f"count(*) FILTER (WHERE {self._condition(of)})", f"min({of}.ts)",
            f"count(DISTINCT {of}.word) FILTER (WHERE {of}.v > 1)",
            f"sum(CASE WHEN {self._condition(of)} THEN 1 ELSE 0 END)", f"max({of}.v) - min({of}.v)",
        ))  # fmt: skip
        return str(value)

    # -- statements ------------------------------------------------------------------------

    def _rows(self) -> tuple[str, str]:
        of = self._name()
        text = (
            f"SELECT {of}.k, {self._number(of)} AS n, {of}.word FROM {self._source(of)}"
            f"{self._where(of, 0.9)}"
        )
        return text, text

    def _joined(self) -> tuple[str, str]:
        one, other = self._name(), self._name()
        join = self._pick(_JOINS)
        if self._chance(0.2):
            kind = self._pick(("JOIN", "LEFT JOIN"))
            text = (
                f"SELECT {one}.k, {one}.v, t.title FROM {self._source(one)} {kind} t "
                f"ON t.key = {one}.k{self._where(one, 0.3)}"
            )
            return text, text
        on = [f"{one}.k = {other}.k"] if self._chance(0.9) else [f"{one}.v = {other}.v"]
        if self._chance(0.4):
            on.append(f"{one}.v < {other}.v")
        if self._chance(0.3):
            on.append(self._condition(one))
        if self._chance(0.3):
            on.append(self._condition(other))
        sides = f"{self._source(one)} {join} {self._source(other)}"
        columns = f"{one}.k, {one}.v"
        if "SEMI" not in join and "ANTI" not in join:
            columns += f", {other}.k AS l, {other}.v AS w, {other}.word"
        where = self._where(one, 0.2)
        text = f"SELECT {columns} FROM {sides} ON {' AND '.join(on)}{where}"
        if self._chance(0.3):
            text = f"SELECT k, count(*) AS n, sum(v) AS s FROM ({text}) GROUP BY k"
        return text, text

    def _bounded(self) -> tuple[str, str]:
        one, other = self._name(), self._name()
        join = self._pick(_JOINS)
        low, high = sorted(self._dice.randint(-6, 6) for _ in range(2))
        on = [
            f"{one}.k = {other}.k",
            f"{other}.ts BETWEEN {one}.ts + INTERVAL '{low}' SECOND AND {one}.ts + "
            f"INTERVAL '{high}' SECOND",
        ]
        if self._chance(0.4):
            on.append(self._pick((f"{one}.v <> {other}.v", self._condition(other))))
        columns = f"{one}.k, {one}.v, {one}.ts AS t"
        if "SEMI" not in join and "ANTI" not in join:
            columns += f", {other}.k AS l, {other}.v AS w"
        where = f" WHERE {self._condition(one)}" if self._chance(0.4) else ""
        text = f"SELECT {columns} FROM a {one} {join} b {other} ON {' AND '.join(on)}{where}"
        if self._chance(0.25):
            text = f"SELECT v, count(*) AS n, max(t) AS last FROM ({text}) GROUP BY v"
        return text, text

    def _grouped(self) -> tuple[str, str]:
        of = self._name()
        key = self._pick((f"{of}.k", f"{of}.word", f"{of}.v % 3", f"{of}.k, {of}.word"))
        calls = ", ".join(f"{self._call(of)} AS c{i}" for i in range(self._dice.randint(1, 3)))
        having = self._pick(("", "", f" HAVING count(*) > {self._dice.randint(1, 8)}", (
            f" HAVING sum({of}.v) > 3 OR max({of}.k) IS NULL"
        )))  # fmt: skip
        if self._chance(0.2):
            inner = self._name()
            having = f" HAVING count(*) > (SELECT count(*) / 8 FROM a {inner})"
        text = (
            f"SELECT {key}, {calls} FROM {self._source(of)}{self._where(of, 0.3)} "
            f"GROUP BY {key}{having}"
        )
        return text.replace("% 3,", "% 3 AS m,", 1), text.replace("% 3,", "% 3 AS m,", 1)

    def _of_groups(self) -> tuple[str, str]:
        one, other = self._name(), self._name()
        groups = f"(SELECT k, count(*) AS n, max(v) AS m FROM {self._pick('ab')} GROUP BY k)"
        text = self._pick((
            f"SELECT n, count(*) AS groups, sum(m) AS s FROM {groups} GROUP BY n",
            f"SELECT {one}.k, {one}.n, {other}.v FROM {groups} {one} {self._pick(_JOINS[:4])} "
            f"{self._source(other)} ON {one}.k = {other}.k AND {one}.m = {other}.v",
            f"SELECT max(n) AS most, min(m) AS least FROM {groups}",
            f"SELECT {one}.k, {one}.n FROM {groups} {one} WHERE {one}.n >= (SELECT avg(n) FROM "
            f"{groups})",
        ))  # fmt: skip
        return text, text

    def _top(self) -> tuple[str, str]:
        of = self._name()
        way = self._pick(("DESC NULLS LAST", "DESC NULLS FIRST", "ASC NULLS FIRST", "NULLS LAST"))
        partition = f"PARTITION BY {of}.k " if self._chance(0.8) else ""
        text = (
            f"SELECT k, v, ts, n FROM (SELECT {of}.k, {of}.v, {of}.ts, ROW_NUMBER() OVER "
            f"({partition}ORDER BY {of}.v {way}, {of}.ts) AS n FROM {self._source(of)}"
            f"{self._where(of, 0.3)}) WHERE n <= {self._dice.randint(1, 4)}"
        )
        return text, text

    def _limited(self) -> tuple[str, str]:
        of = self._name()
        way = self._pick(("DESC NULLS LAST", "ASC NULLS FIRST"))
        text = (
            f"SELECT {of}.ts, {of}.v FROM {self._source(of)}{self._where(of, 0.2)} "
            f"ORDER BY {of}.v {way}, {of}.ts LIMIT {self._dice.randint(1, 9)}"
        )
        return text, text

    def _distinct(self) -> tuple[str, str]:
        of = self._name()
        text = f"SELECT DISTINCT {of}.k, {self._number(of)} AS n FROM {self._source(of)}"
        text += self._where(of, 0.3)
        return text, text

    def _united(self) -> tuple[str, str]:
        word = self._pick(("UNION ALL", "UNION ALL", "UNION"))
        one, other = self._name(), self._name()
        text = (
            f"SELECT {one}.k, {self._number(one)} AS n FROM {self._source(one)}"
            f"{self._where(one, 0.2)} {word} SELECT {other}.k, {other}.v FROM "
            f"{self._source(other)}{self._where(other, 0.2)}"
        )
        if self._chance(0.4):
            text = f"SELECT k, count(*) AS c, count(n) AS d FROM ({text}) GROUP BY k"
        return text, text

    def _sets(self) -> tuple[str, str]:
        of = self._name()
        sets = self._pick((
            f"GROUPING SETS (({of}.k, {of}.word), ({of}.k), ())", f"CUBE ({of}.k, {of}.word)",
            f"ROLLUP ({of}.k, {of}.word)", f"{of}.k, ROLLUP ({of}.word)",
        ))  # fmt: skip
        text = (
            f"SELECT {of}.k, {of}.word, grouping({of}.k) AS g, count(*) AS n, sum({of}.v) AS s "
            f"FROM {self._source(of)} GROUP BY {sets}"
        )
        return text, text

    def _framed(self) -> tuple[str, str]:
        of = self._name()
        over = (
            f"PARTITION BY {self._pick((f'{of}.k', f'{of}.word', f'{of}.v % 2'))} ORDER BY {of}.ts"
        )
        rows = self._dice.randint(0, 4)
        calls = self._pick((
            f"sum({of}.v) OVER ({over} ROWS BETWEEN {rows} PRECEDING AND CURRENT ROW)",
            f"count(*) OVER ({over} RANGE BETWEEN INTERVAL '{rows}' SECOND PRECEDING AND CURRENT "
            "ROW)",
            f"lag({of}.v, {rows}) OVER ({over})", f"lead({of}.v) OVER ({over})",
            f"lead({of}.v, 2, -7) OVER ({over})", f"max({of}.v) OVER ({over})",
            f"row_number() OVER ({over})", f"rank() OVER ({over})", f"avg({of}.v) OVER ({over})",
            f"first_value({of}.v) OVER ({over})", f"dense_rank() OVER ({over})",
            f"nth_value({of}.v, 2) OVER ({over})",
        ))  # fmt: skip
        text = f"SELECT {of}.k, {of}.v, {calls} AS f FROM {self._pick('ab')} {of}"
        if self._chance(0.3):
            text += f" WHERE {self._condition(of)}"
        return text, text

    def _windowed(self) -> tuple[str, str]:
        kind, table = self._pick(_WINDOWS), self._pick("ab")
        step = self._pick((2, 5))
        size = step * self._pick((2, 3))
        call = {
            "tumble": f"TUMBLE(TABLE {table}, DESCRIPTOR(ts), INTERVAL '{step}' SECOND)",
            "hop": f"HOP(TABLE {table}, DESCRIPTOR(ts), INTERVAL '{step}' SECOND, "
            f"INTERVAL '{size}' SECOND)",
            "cumulate": f"CUMULATE(TABLE {table}, DESCRIPTOR(ts), INTERVAL '{step}' SECOND, "
            f"INTERVAL '{size}' SECOND)",
        }[kind]
        bucket, whole = _BUCKET.format(step), _BUCKET.format(size)
        ends = {
            "tumble": f"[{bucket} + INTERVAL {step} SECOND]",
            "hop": f"generate_series({bucket} + INTERVAL {step} SECOND, {bucket} + INTERVAL {size} "
            f"SECOND, INTERVAL {step} SECOND)",
            "cumulate": f"generate_series({bucket} + INTERVAL {step} SECOND, {whole} + INTERVAL "
            f"{size} SECOND, INTERVAL {step} SECOND)",
        }[kind]
        rows = f"(SELECT *, unnest({ends}) AS window_end FROM {table})"
        where = f" WHERE {self._condition('w')}" if self._chance(0.5) else ""
        calls = f"{self._call('w')} AS c, {self._call('w')} AS d"
        having = f" HAVING count(*) > {self._dice.randint(1, 3)}" if self._chance(0.3) else ""
        sets = self._chance(0.2)
        keys = "window_end, CUBE (w.k)" if sets else "w.k, window_end"
        both = "window_start, window_end, CUBE (w.k)" if sets else "w.k, window_start, window_end"
        ours = (
            f"SELECT w.k, window_end, {calls} FROM TABLE({call}) w{where} GROUP BY {both}{having}"
        )
        theirs = f"SELECT w.k, window_end, {calls} FROM {rows} w{where} GROUP BY {keys}{having}"
        if self._chance(0.3):
            around = "SELECT c, count(*) AS n, max(window_end) AS last FROM ({}) GROUP BY c"
            return around.format(ours), around.format(theirs)
        if self._chance(0.2) and not sets:
            around = (
                "SELECT k, window_end, d FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY "
                "window_end ORDER BY c DESC NULLS LAST, k NULLS FIRST) AS n FROM ({})) WHERE n <= 2"
            )
            return around.format(ours), around.format(theirs)
        return ours, theirs

    def _session(self) -> tuple[str, str]:
        gap, table = self._dice.randint(1, 3), self._pick("ab")
        where = f" WHERE {self._condition('w')}" if self._chance(0.5) else ""
        having = f" HAVING count(*) > {self._dice.randint(1, 2)}" if self._chance(0.3) else ""
        ours = (
            f"SELECT k, session_window.start AS s, session_window.end AS e, count(*) AS n, "
            f"sum(v) AS t FROM {table} w{where} GROUP BY k, session_window(ts, '{gap} seconds')"
            f"{having}"
        )
        theirs = (
            f"SELECT k, min(ts) AS s, max(ts) + INTERVAL {gap} SECOND AS e, count(*) AS n, "
            "sum(v) AS t FROM (SELECT *, sum(opens) OVER (PARTITION BY k ORDER BY ts) AS run FROM "
            f"(SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) < INTERVAL {gap} "
            f"SECOND THEN 0 ELSE 1 END AS opens FROM {table} w{where})) GROUP BY k, run{having}"
        )
        return ours, theirs
