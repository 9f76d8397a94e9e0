from __future__ import annotations

from pathlib import Path

from icestream.runtime.exchange.parcels import ExchangeWriter, ParcelReader, Parcels
from icestream.runtime.work.latest.ingest import EVERY, UpdatesIngest
from icestream.state.files import LocalFiles
from tests.fixtures.update_streams import Costly, ManualClock, Quote, quotes, quotes_plan

ROUTES = (0, 0, 0, 0, 1, 1, 1, 1)
BATCH: list[Quote] = [(f"s{n % 7}", n, n * 31 % 97) for n in range(100)]


def sent(folder: Path, name: str, schedule: str | None, pieces: int) -> Path:
    path = folder / name
    plan = quotes_plan(Costly(ManualClock()), schedule=schedule)
    out = ExchangeWriter(LocalFiles(), str(path), LocalFiles(), str(folder), name)
    step = len(BATCH) // pieces
    batches = [quotes(BATCH[first : first + step]) for first in range(0, len(BATCH), step)]
    report = UpdatesIngest(plan, 1, -(2**63), ROUTES).run(batches, out)
    out.finish()
    assert report.rows == 100
    assert report.entries == (100 if schedule is None else 7)
    assert sum(report.load.values()) == report.entries
    return path


def test_the_same_updates_make_the_same_parcel(tmp_path: Path) -> None:
    one, other = (sent(tmp_path, f"p{pieces}", "inplace", pieces) for pieces in (1, 5))
    assert one.read_bytes() == other.read_bytes()


def test_every_event_of_an_append_stream_goes_to_one_shard(tmp_path: Path) -> None:
    path = sent(tmp_path, "parcel", None, 2)
    reader = ParcelReader(LocalFiles(), [str(path)])
    counts = [
        sum(part.num_rows for part in Parcels(reader, shard, part=EVERY).tuples())
        for shard in (0, 1)
    ]
    reader.close()
    assert sum(counts) == 100
    assert min(counts) > 30
