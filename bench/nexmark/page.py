"""The page about Nexmark: rates, statements side by side, and what EXPLAIN shows for each.

Run as `python -m bench.nexmark.page`; it writes `docs/nexmark.md` from the statements and from the
stored report, and the figure if there is a report.
"""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import icestream as ice
from bench.harness import BenchReport, workspace
from bench.nexmark.answers import STATEMENTS
from bench.nexmark.events import Nexmark
from bench.nexmark.nexmark import BY_FLINK, BY_SPARK, FLINK, ICESTREAM, SPARK, STATELESS, plot
from bench.nexmark.running import NUMBERS, for_spark, sources, statement, written_tables
from bench.registry import Figures

PAGE, REPORT, FIGURE = "nexmark.md", "figures/nexmark.json", "figures/nexmark.png"
INTRODUCTION = """
# Nexmark

[Nexmark](https://github.com/nexmark/nexmark) is what streaming engines are compared by: persons
open auctions and bid in them, and 23 statements ask about it. This page has all of them, as
published but for the `CREATE TABLE` and `INSERT INTO` of their sinks
([what differs](guide/sql.md#nexmark)). Beside each is DuckDB's statement over the same finite data,
with which its rows are compared, and the first part of what `EXPLAIN` returns: the relations, what
each stores, and what bounds it.

    python -m bench nexmark --size full --json docs/figures/nexmark.json
    python -m bench nexmark --size full --only q5,q7
    python -m bench.nexmark.page

## What is compared

What a user sees: events a second from files to results, once warm, on two cores. All systems read
the same rows as the same text (Flink's package reads no Parquet), and the time of reading counts
for each of them. Taking it off one side only would compare a whole with a part; taking it off both
would need a rate of reading that no system shows by itself, as each reads only the columns that a
statement needs, while it computes. Icestream commits every batch of 500,000 events, Flink takes a
checkpoint every ten seconds and may hold rows back for a second (mini-batches). Bars are judged
there, although Icestream then commits about ten times as often; its rates in batches of a million,
one or two seconds of work, are below if the run has them. Icestream and Spark write their results
as Parquet, but for Spark's tables by key; Flink's are discarded. Statements that read no bids read
those of eight times as many events, in batches of as many rows. A statement has 45 seconds; one
that takes longer is listed as not measured.
"""
MEASURED = """
Rates are of all events of the streams that a statement reads; *of Flink* is the ratio of two of
them. Memory is the peak of all processes of a system in MB, JVMs included; state is what is on disk
at the end, in MB (Flink: its largest checkpoint, if there was one). Statements whose answer is a
table by key (q4, q6, q9, q15 to q19) run in mode `now`: a version writes the keys that changed, as
Flink's mini-batches do. Where Flink ends a statement before a steady rate can be read off, a
statement takes longer than it has, or was written for a system after the run, the field is empty.

| | Icestream | Flink | Spark | of Flink | memory: Icestream | Flink | Spark | state: Icestream \
| Flink | Spark |
|---|---|---|---|---|---|---|---|---|---|---|
"""

REASONS = """
What profiles show where bars are missed: reading text and moving columns of text take most of the
processor time of most statements. Icestream writes what it exchanges and logs to files in every
batch; Flink's state on the heap is written every ten seconds. q16 keeps an entry for every channel
and bidder and for every channel and auction; q18 and q19 exchange and log whole rows.
Statements without state are handed to Spark.

What Spark runs: the published statements that it reads (q0 to q3, q10, q14, q17, q20 to q22), and
others that were written for it and have the same rows, shown below. q5 chains two windowed
aggregates, q7 joins one with bids and q8 two of them, q11 has session windows. q9 reports an
auction when no bid can come for it any more, so event time of auctions is `expires` there. q18 and
q19 are `max_by` of one row and of ten, in update mode. Streams refuse `COUNT(DISTINCT ...)`; an
exact answer without it is the size of a `collect_set` (q15, q16). Spark runs neither q4, an
aggregate without a window of an aggregate that changes (in update mode it has one, in append mode
each needs a watermark), nor q6, whose `OVER` is not by windows of time.
"""


def main() -> None:
    """Write the page."""
    docs = workspace() / "docs"
    stored = docs / REPORT
    report = BenchReport.from_json(stored.read_text()) if stored.exists() else None
    if report is not None:
        plot(report.figures, docs / FIGURE)
    spark = ice.local_session("nexmark page", cores=1)
    folder = workspace() / "artifacts" / "nexmark-page"
    if not folder.exists():
        written_tables(Nexmark(100), folder, 1)
    tables = sources(spark, folder)
    parts = [INTRODUCTION.strip(), "" if report is None else measured(report)]
    parts += [section(number, explained(number, tables)) for number in NUMBERS]
    (docs / PAGE).write_text("\n\n".join(filter(None, parts)) + "\n")
    spark.stop()


def explained(number: str, tables: dict[str, Any]) -> str:
    """Return the relations of a statement, as EXPLAIN shows them."""
    *views, text = statement(number).split(";")
    shown: str = ice.sql(";".join([*views, f"EXPLAIN {text.strip()}"]), **tables)
    return shown.split("\n\n", maxsplit=1)[0]


def section(number: str, tree: str) -> str:
    """Return the part of the page about one statement."""
    others = [name for name, runs in (("Flink", BY_FLINK), ("Spark", BY_SPARK)) if number in runs]
    kind = "Spark runs it alone." if number in STATELESS else ""
    beside = f"Measured beside {' and '.join(others)}." if others else "No other system runs it."
    theirs = dedent(STATEMENTS[number]).strip()
    return f"""## {number}

{" ".join(filter(None, (kind, beside)))}

```sql
{statement(number).strip()}
```

{sparks(number)}DuckDB:

```sql
{theirs}
```

```text
{tree}
```"""


def sparks(number: str) -> str:
    """Return the statement that was written for Spark, if there is one."""
    text = for_spark(number).strip()
    return "" if text == statement(number).strip() else f"Spark:\n\n```sql\n{text}\n```\n\n"


def measured(report: BenchReport) -> str:
    """Return the table of rates, memory and state, and the bars."""
    figures, rows = report.figures, []
    for number in NUMBERS:
        rates = [figures[f"{each}_eps"].get(number) for each in (ICESTREAM, FLINK, SPARK)]
        ratio = figures["of_flink"].get(number)
        sizes = [
            figures[kind].get(system, {}).get(number)
            for kind in ("peak_bytes", "state_bytes")
            for system in (ICESTREAM, FLINK, SPARK)
        ]
        cells = [*map(_rate, rates), "" if ratio is None else f"{ratio:.2f}", *map(_size, sizes)]
        rows.append(f"| {number} | " + " | ".join(cells) + " |")
    tenth = ", ".join(
        f"{name} {_rate(each['eps'])} in {_size(each['memory'])} MB with "
        f"{_size(each['state_bytes'])} MB of state"
        for name, each in figures["tenth"].items()
    )
    bars = [
        f"| {bar.name} | {bar.wanted} | {'-' if bar.measured is None else f'{bar.measured:.2f}'} | "
        f"{'yes' if bar.holds else '**no**'} |"
        for bar in report.bars
    ]
    machine = report.machine
    return "\n".join(
        (
            f"## Events per second, memory and state (size `{report.size}`)",
            MEASURED.rstrip(),
            *rows,
            "",
            f"With a tenth of the state as memory, but at least 8 MB: {tenth}.",
            *_larger(figures),
            "",
            "| bar | wanted | measured | holds |",
            "|---|---|---|---|",
            *bars,
            REASONS.rstrip(),
            "",
            f"![events per second by statement]({FIGURE})",
            "",
            f"{machine['cores']} cores ({machine['cpu']}), load {machine['load_before']} at the",
            f"start, commit `{report.commit}`, {report.date[:10]}. Full report:",
            f"[nexmark.json]({REPORT}).",
        )
    )


def _larger(figures: Figures) -> list[str]:
    """Return a paragraph with the rates in larger batches, if they were measured."""
    found = figures.get("larger_batches_eps", {})
    ratio = figures.get("larger_batches_of_flink_mean")
    rates = ", ".join(f"{name} {_rate(eps)}" for name, eps in found.items())
    of_flink = "" if ratio is None else f"; {ratio:.2f} of Flink (geometric mean)"
    return ["", f"In batches of twice as many events: {rates}{of_flink}."] if found else []


def _rate(eps: float | None) -> str:
    return "" if eps is None else f"{eps:,.0f}"


def _size(bytes_: int | None) -> str:
    return "" if bytes_ is None else f"{bytes_ / (1 << 20):,.1f}"


if __name__ == "__main__":
    main()
