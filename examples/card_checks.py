"""Cards that are used in two countries within an hour: a processor with state and a timer.

The class has the names of Spark's own `StatefulProcessor`.

python examples/card_checks.py [FOLDER]
"""

import random
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import icestream as ice

SCHEMA = "at timestamp, card long, country string"
HOUR_MS = 3_600_000


class TwoCountries(ice.StatefulProcessor):
    """Stores the country of a card for an hour after it was last used."""

    output = "card long, first string, second string"

    def init(self, handle):
        """Declare the state."""
        self.handle = handle
        self.last = handle.getValueState("last", "country string, until long")

    def handleInputRows(self, key, rows, timers):
        """Emit a card whose country changes while the last one is stored."""
        for row in rows:
            known, now = self.last.get(), int(row["at"].timestamp() * 1000)
            # rows of a batch come before the timers that its watermark fires
            if known is not None and known[0] != row["country"] and now < known[1]:
                yield {"card": key[0], "first": known[0], "second": row["country"]}
            self.last.update((row["country"], now + HOUR_MS))
            self.handle.registerTimer(now + HOUR_MS)

    def handleExpiredTimer(self, key, timers, expired):
        """Delete the state of a card that was not used since."""
        known = self.last.get()
        if known is not None and known[1] <= expired.getExpiryTimeInMs():
            self.last.clear()
        return ()


def write_payments(folder: Path, cards: int = 300) -> None:
    """Write a day of payments; cards divisible by 50 travel too fast, others pause in between."""
    folder.mkdir(parents=True)
    draw = random.Random(1)
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    payments = []
    for card in range(cards):
        at = begin + timedelta(minutes=draw.uniform(0, 60))
        pause = timedelta(minutes=30) if card % 50 == 0 else timedelta(hours=6)
        payments += [(at, card, "NO"), (at + pause, card, "PT")]
    payments.sort()
    payments.append((begin + timedelta(days=1), -1, "NO"))
    rows = pa.table(
        {
            "at": pa.array([at for at, _, _ in payments], pa.timestamp("us", "UTC")),
            "card": [card for _, card, _ in payments],
            "country": [country for _, _, country in payments],
        }
    )
    half = rows.num_rows // 2
    pq.write_table(rows.slice(0, half), folder / "1.parquet")
    pq.write_table(rows.slice(half), folder / "2.parquet")


def main(home: Path) -> None:
    """Check all payments."""
    write_payments(home / "events")
    spark = ice.local_session()
    frame = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(home / "events"))
    )
    payments = ice.stream(frame, time="at").events()
    told = payments.groupApply("card", lambda card: card.process(TwoCountries()))
    query = (
        told.writeStream.option("path", str(home / "told"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .memory("64 MB")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    cards = spark.read.parquet(str(home / "told")).select("card").orderBy("card").collect()
    print("cards to look at", [row.card for row in cards])
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="card-checks-")))
