"""The targets of almost valid inputs: every reader of bytes and text.

Idea: a target generates an input from a sample and random numbers, and feeds it to one reader.
Readers may accept it or raise an `IcestreamError`; anything else is a finding. Files come in two
kinds: changed as an accident would change them, and changed and signed again, so that every
checksum is valid.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from icestream.core.units import parse_bytes, parse_interval
from icestream.dashboard.query_list import QueryList
from icestream.dashboard.server import DashboardServer, _Handler
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.state_rows import Reading
from icestream.inspect.verify import check_mark
from icestream.runtime.version.history import NEWER, history_folder
from icestream.sql.expressions.parse import parse_item
from icestream.sql.relations.names import Functions
from icestream.state.log.format import TRAILER
from icestream.state.log.reader import SegmentReader
from icestream.state.versions.commits import PLAN, SEGMENTS, Commit
from tests.faults.changed_files import ChangedFiles
from tests.faults.mutations import changed_bytes, changed_json, changed_text, json_bytes
from tests.faults.resigned_files import PARTS, changed_payloads, changed_segment, sealed
from tests.fixtures.checkpoints import KINDS, make
from tests.fixtures.cql_statements import NameScope, relations_of

#: budget for restoring a changed checkpoint
MEMORY = 32 << 20
_STATEMENTS = (
    "SELECT k , count(*) AS n , avg(x) FROM s [RANGE 1 HOUR SLIDE 10 SECONDS] GROUP BY k",
    "SELECT sum(x) / count(*) FROM s [ROWS 100 SLIDE 10] WHERE x > 3 AND k IN ( 1 , 2 )",
    "SELECT k , max_by(x, y) m FROM s [PARTITION BY k ROWS 5] HAVING m > 0",
    "SELECT k , percentile(x, 0.5) FROM s [SESSION 5 MINUTES] GROUP BY GROUPING SETS ( (k) , () )",
    "SELECT count(DISTINCT x) FROM s [RANGE 1 DAY] ; SELECT min(x) FROM s [RANGE 1 MINUTE]",
    "SELECT s.k , r.z FROM s [NOW] LEFT JOIN r [RANGE 1 HOUR] ON s.k = r.k AND s.t >= r.t",
    "WITH q AS ( SELECT k , max(x) AS m FROM s GROUP BY ROLLUP ( k ) ) SELECT * FROM q WHERE m > 1",
    "SELECT k FROM s WHERE x NOT IN ( SELECT z FROM r ) AND EXISTS ( SELECT 1 FROM r WHERE z = x )",
    "SELECT k , LEAD(x) OVER ( PARTITION BY k ORDER BY t ) FROM s UNION ALL SELECT k , z FROM r",
    "SELECT sum(x) OVER w , max(x) OVER ( v ) FROM s WINDOW w AS ( ORDER BY t ) , v AS ( w )",
    "SELECT * FROM ( SELECT * , ROW_NUMBER() OVER ( ORDER BY x DESC ) n FROM s ) WHERE n <= 3",
    "SELECT k , count(*) FROM TUMBLE( TABLE s , DESCRIPTOR(t) , INTERVAL '1' HOUR ) GROUP BY k",
)
_EXPRESSIONS = (
    "x + 1 > y * 2 AND NOT ( k IS NULL )",
    "CASE WHEN x > 0 THEN 'a' ELSE concat( 'b' , k ) END AS v",
    "cast( x AS bigint ) % 7 = 0 OR k LIKE 'a%'",
)
_WORDS = (
    *(word for text in (*_STATEMENTS, *_EXPRESSIONS) for word in text.split(" ")),
    *("(", ")", "[", "]", ";", "'", '"', "`", "*", "--", "/*", "*/", "CUBE", "ROLLUP", "OVER"),
    *("FILTER", "JOIN", "UNION", "LIMIT", "EXISTS", "1e400", "INTERVAL", "BETWEEN", "NULL"),
)
_UNITS = ("512 MB", "1.5 GiB", "10 seconds", "1 hour 30 minutes", "-3 days", "64k", "2 weeks")


@dataclass(frozen=True)
class FuzzTarget:
    """One reader, and its generator of inputs."""

    name: str
    make: Callable[[random.Random], Any]
    feed: Callable[[Any], object]
    #: whether checksums are recomputed
    signed: bool = False
    #: thousands of inputs of a full run
    thousands: int = 100

    def input(self, number: int) -> Any:
        """Return the input with a number, always the same."""
        return self.make(random.Random(f"{self.name} {number}"))


def make_samples(folder: Path) -> None:
    """Create a checkpoint of every kind of state."""
    for kind in KINDS:
        make(kind, str(folder / kind))


def targets(folder: Path) -> Iterator[FuzzTarget]:
    """Yield every target, with the samples of a folder."""
    roots = {kind: str(folder / kind / "checkpoint") for kind in KINDS}
    root = roots["windows"]
    yield from _commits(root)
    yield from _plans(roots)
    yield from _segments(roots)
    for kind, where in roots.items():
        yield _state(kind, where)
    yield _state("windows", root, kept="panes")
    yield _state("objects", roots["objects"], kept="panes")
    yield _state("sessions", roots["sessions"], kept="sessions")
    mark = str(folder / "mark")
    yield FuzzTarget(
        "marks of delivery",
        lambda dice: changed_bytes(b"delivered\n", (), dice),
        lambda data: check_mark(Checkpoint(root, ChangedFiles({mark: data})), mark),
        thousands=20,
    )
    streams = {"s": ("t", "k", "x", "y"), "r": ("t", "k", "z")}
    scope = NameScope(streams, Functions(frozenset({"mine"})))
    feed = partial(relations_of, scope=scope)
    yield FuzzTarget("statements", partial(_text, _STATEMENTS), feed)
    yield FuzzTarget("expressions", partial(_text, _EXPRESSIONS), parse_item, thousands=50)
    yield FuzzTarget("amounts", partial(_text, _UNITS), _units, thousands=30)
    yield from _page(folder / "page")


# -- files ---------------------------------------------------------------------------------


def _commits(root: str) -> Iterator[FuzzTarget]:
    checkpoint = Checkpoint(root)
    last = checkpoint.versions[-1]
    path = checkpoint.store.path(last)
    samples = [Path(checkpoint.store.path(each)).read_bytes() for each in (1, last)]
    values = [json.loads(sample.partition(b"\n")[0]) for sample in samples]

    def feed(data: bytes) -> None:
        opened = Checkpoint(root, ChangedFiles({path: data}))
        opened.history(opened.commit())
        opened.live(last)

    yield FuzzTarget("commits", partial(_bytes, samples), feed, thousands=100)

    def make_signed(dice: random.Random) -> bytes:
        value = changed_json(dice.choice(values), dice)
        if isinstance(value, dict) and dice.random() < 0.9:
            value["version"] = last
        return sealed(value)

    yield FuzzTarget("commits, signed", make_signed, feed, signed=True)


def _plans(roots: dict[str, str]) -> Iterator[FuzzTarget]:
    samples = [Path(root, PLAN).read_bytes() for root in roots.values()]
    values = [json.loads(sample.partition(b"\n")[0]) for sample in samples]
    root = roots["windows"]

    def feed(data: bytes) -> None:
        opened = Checkpoint(root, ChangedFiles({f"{root}/{PLAN}": data}))
        _ = opened.plan, opened.state_schema

    yield FuzzTarget("plans", partial(_bytes, samples), feed, thousands=50)
    yield FuzzTarget(
        "plans, signed",
        lambda dice: sealed(changed_json(dice.choice(values), dice)),
        feed,
        signed=True,
        thousands=110,
    )


def _segments(roots: dict[str, str]) -> Iterator[FuzzTarget]:
    samples = [
        path.read_bytes()
        for root in roots.values()
        for path in sorted(Path(root, SEGMENTS).iterdir())[:4]
        if path.stat().st_size < 1 << 14
    ]

    def feed(data: bytes) -> None:
        with closing(SegmentReader(ChangedFiles({"segment": data}), "segment")) as reader:
            for _ in reader.scan():
                pass
            markers = reader.directory["marker"]
            for _ in reader.read_many(markers[:: max(1, len(markers) // 3)]):
                pass

    yield FuzzTarget("segments", partial(_bytes, samples), feed, thousands=150)
    yield FuzzTarget(
        "segments, signed",
        lambda dice: changed_segment(dice.choice(samples), dice.choice(PARTS), dice),
        feed,
        signed=True,
        thousands=120,
    )


def _state(kind: str, root: str, kept: str | None = None) -> FuzzTarget:
    """Restore and read the newest state, one of its segments changed inside and signed again."""
    checkpoint = Checkpoint(root)
    commits = [checkpoint.store.load(version) for version in checkpoint.versions]
    live = checkpoint.live(commits[-1].version)
    contents = {each.info.name: Path(root, SEGMENTS, each.info.name).read_bytes() for each in live}

    def make_input(dice: random.Random) -> dict[str, bytes]:
        name = dice.choice(list(contents))
        data = changed_payloads(contents[name], dice)
        if dice.random() < 0.3:
            data = changed_segment(data, "directory", dice)
        return {
            f"{root}/{SEGMENTS}/{name}": data,
            **{
                checkpoint.store.path(commit.version): sealed(
                    _listing(commit, name, data).to_json()
                )
                for commit in (*commits[:-1], replace(commits[-1], manifests=(), live=live))
                if any(each.info.name == name for each in (*commit.added, *(commit.live or ())))
            },
        }

    def feed(changes: dict[str, bytes]) -> None:
        for found in Reading(root, kept=kept, memory=MEMORY, files=ChangedFiles(changes)).rows():
            found.rows.validate(full=True)

    name = f"state of {kind}{f' by {kept}' if kept else ''}, signed"
    return FuzzTarget(name, make_input, feed, signed=True, thousands=3)


def _listing(commit: Commit, name: str, data: bytes) -> Commit:
    """Return a commit that describes a segment as it is now."""
    checksum = TRAILER.unpack(data[-TRAILER.size :])[7]

    def known(each: Any) -> Any:
        info = each.info
        if info.name != name:
            return each
        return replace(each, info=replace(info, bytes=len(data), footer_checksum=checksum))

    live = None if commit.live is None else tuple(map(known, commit.live))
    return replace(commit, added=tuple(map(known, commit.added)), live=live)


def _bytes(samples: Sequence[bytes], dice: random.Random) -> bytes:
    return changed_bytes(dice.choice(samples), samples, dice)


# -- texts ---------------------------------------------------------------------------------


def _text(samples: Sequence[str], dice: random.Random) -> str:
    return changed_text(dice.choice(samples), _WORDS, dice)


def _units(text: str) -> None:
    for parse in (parse_bytes, parse_interval):
        parse(text)


# -- the page ------------------------------------------------------------------------------


def _page(folder: Path) -> Iterator[FuzzTarget]:
    checkpoint = folder / "checkpoint"
    newer = Path(history_folder(str(checkpoint)), NEWER)
    newer.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {"kind": "start", "name": "q", "process": {"host": "h", "pid": 1}, "plan": {"view": []}},
        {"kind": "progress", "numInputRows": 5, "icestream": {"memory": {"used": 1}, "shards": []}},
        {"kind": "end", "error": "no", "timestamp": "2024-01-01T00:00:00Z"},
    ]
    samples = [json_bytes(line) + b"\n" for line in lines]

    def feed_history(data: bytes) -> None:
        newer.write_bytes(data)
        library = QueryList([str(checkpoint)])
        for each in library.queries():
            json.dumps(library.query(each["id"], 0))

    yield FuzzTarget(
        "histories",
        lambda dice: b"".join(
            json_bytes(changed_json(line, dice)) + b"\n"
            if dice.random() < 0.8
            else changed_bytes(dice.choice(samples), samples, dice)
            for line in lines
        ),
        feed_history,
        thousands=20,
    )
    with DashboardServer(QueryList([])) as page:
        host, token = f"127.0.0.1:{page.port}".encode(), page.token.encode()
    requests = [
        b"GET /%s/%s HTTP/1.1\r\nHost: %s\r\nAccept: */*\r\n\r\n" % (token, what, host)
        for what in (b"", b"api/queries", b"api/query/0?after=3", b"metrics", b"app.js")
    ]
    server = page._server

    def feed_request(data: bytes) -> None:
        answered = io.BytesIO()
        connection: Any = SimpleNamespace(
            makefile=lambda *_: io.BytesIO(data),
            sendall=answered.write,
            settimeout=lambda _: None,
            setsockopt=lambda *_: None,
        )
        _Handler(connection, ("127.0.0.1", 1), server)
        status = answered.getvalue()[:12]
        if b" 500" in status:
            raise AssertionError(status)

    yield FuzzTarget("requests", partial(_bytes, requests), feed_request)
