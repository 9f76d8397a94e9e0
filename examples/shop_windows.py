"""Two windows over one stream of orders, started as one query, with a sink each.

python examples/shop_windows.py [FOLDER]
"""

import random
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import icestream as ice

SCHEMA = "at timestamp, shop string, price double"


def write_orders(folder: Path, count: int = 5_000) -> None:
    """Write an hour of orders, some of them up to three seconds late."""
    folder.mkdir(parents=True)
    draw = random.Random(1)
    begin = datetime(2026, 3, 1, 12, tzinfo=UTC)
    seconds = [3600 * number / count - draw.uniform(0, 3) for number in range(count)]
    rows = pa.table(
        {
            "at": pa.array(
                [begin + timedelta(seconds=s) for s in seconds], pa.timestamp("us", "UTC")
            ),
            "shop": [draw.choice(["Lisbon", "Oslo", "Porto"]) for _ in seconds],
            "price": [round(draw.uniform(1, 50), 2) for _ in seconds],
        }
    )
    pq.write_table(rows, folder / "orders.parquet")


def main(home: Path) -> None:
    """Compute revenue by shop, and figures over all shops."""
    write_orders(home / "events")
    spark = ice.local_session()
    frame = spark.readStream.schema(SCHEMA).parquet(str(home / "events"))
    orders = ice.stream(frame, time="at", slack="5 seconds")
    by_shop = (
        orders.window("10 minutes", slide="10 seconds")
        .groupBy("shop")
        .agg(ice.count().alias("orders"), ice.sum("price").alias("revenue"))
    )
    in_all = ice.sql(
        "SELECT MAX(price) AS highest, AVG(price) AS average FROM orders [RANGE 1 MINUTE SLIDE 1 MINUTE]",
        orders=orders,
    )
    query = ice.start(
        by_shop.writeStream.option("path", str(home / "by_shop")),
        in_all.writeStream.option("path", str(home / "in_all")),
        checkpointLocation=str(home / "checkpoint"),
        memory="64 MB",
        trigger={"availableNow": True},
    )
    query.awaitTermination()
    newest = spark.read.parquet(str(home / "by_shop")).orderBy("window", ascending=False)
    newest.select("window.end", "shop", "orders", "revenue").show(3)
    print(spark.read.parquet(str(home / "in_all")).count(), "minutes")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="shop-windows-")))
