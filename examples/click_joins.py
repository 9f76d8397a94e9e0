"""Which ads were clicked within a minute, and which were not: a join and a difference.

python examples/click_joins.py [FOLDER]
"""

import random
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import icestream as ice

SCHEMA = "at timestamp, kind string, ad long"


def write_events(folder: Path, ads: int = 2_000) -> None:
    """Write ads that are shown, and a click on one of three, up to half a minute later."""
    folder.mkdir(parents=True)
    draw = random.Random(1)
    begin = datetime(2026, 3, 1, 12, tzinfo=UTC)
    shown = [(begin + timedelta(seconds=ad), "shown", ad) for ad in range(ads)]
    clicks = [
        (at + timedelta(seconds=draw.uniform(1, 30)), "click", ad)
        for at, _, ad in shown
        if ad % 3 == 0
    ]
    events = sorted(shown + clicks)
    last = events[-1][0]
    # one more event, much later: the watermark passes all earlier ones
    events.append((last + timedelta(hours=1), "shown", -1))
    rows = pa.table(
        {
            "at": pa.array([at for at, _, _ in events], pa.timestamp("us", "UTC")),
            "kind": [kind for _, kind, _ in events],
            "ad": [ad for _, _, ad in events],
        }
    )
    pq.write_table(rows, folder / "events.parquet")


def main(home: Path) -> None:
    """Join ads with their clicks, and find the ads without one."""
    write_events(home / "events")
    spark = ice.local_session()
    frame = spark.readStream.schema(SCHEMA).parquet(str(home / "events"))
    events = ice.stream(frame, time="at").events()
    shown = events.where("kind = 'shown'").select("ad", "at AS shown_at")
    clicks = events.where("kind = 'click'").select("ad", "at AS clicked_at")

    clicked = shown.join(clicks, on="ad", within="1 minute")
    # an ad counts as not clicked a minute after it was shown, unless a click of that minute is
    # alive
    given_up = shown.shift("1 minute").difference(clicks.alterLifetime("2 minutes"), on="ad")

    for name, result in (("clicked", clicked), ("given_up", given_up)):
        query = (
            result.writeStream.option("path", str(home / name))
            .option("checkpointLocation", str(home / "checkpoint" / name))
            .memory("64 MB")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        print(name, spark.read.parquet(str(home / name)).count())
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="click-joins-")))
