"""Quotes come faster than a model can score them: only the newest of each symbol is scored.

python examples/quote_scores.py [FOLDER]
"""

import random
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import icestream as ice

SCHEMA = "at timestamp, symbol string, price double"
FILES, QUOTES, SYMBOLS = 5, 20_000, 200


def write_quotes(folder: Path) -> None:
    """Write some files of quotes."""
    folder.mkdir(parents=True)
    draw = random.Random(1)
    begin = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for file in range(FILES):
        moments = [begin + timedelta(milliseconds=file * QUOTES + n) for n in range(QUOTES)]
        rows = pa.table(
            {
                "at": pa.array(moments, pa.timestamp("us", "UTC")),
                "symbol": [f"S{draw.randrange(SYMBOLS):03}" for _ in moments],
                "price": [round(draw.uniform(10, 20), 2) for _ in moments],
            }
        )
        pq.write_table(rows, folder / f"{file}.parquet")


def score(quotes: pa.RecordBatch) -> pa.RecordBatch:
    """Pretend to be a model that takes a tenth of a millisecond for each row."""
    time.sleep(quotes.num_rows * 1e-4)
    scores = pc.power(quotes.column("price"), 2.0)
    return pa.record_batch([quotes.column("symbol"), scores], names=["symbol", "score"])


def main(home: Path) -> None:
    """Score the newest quote of each symbol."""
    write_quotes(home / "events")
    spark = ice.local_session()
    frame = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(home / "events"))
    )
    newest = ice.stream(frame, time="at").latestBy("symbol")
    query = (
        newest.apply(score, "symbol string, score double")
        .writeStream.option("path", str(home / "scores"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .memory("64 MB")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    scores = spark.read.parquet(str(home / "scores"))
    print(
        "quotes",
        FILES * QUOTES,
        "scored",
        scores.count(),
        "symbols",
        scores.select("symbol").distinct().count(),
    )
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="quote-scores-")))
