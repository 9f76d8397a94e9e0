"""Revenue by shop from a Kafka topic, over two runs of one query.

The client library includes a broker, which speaks Kafka's protocol on a port of this machine, so no
other program is needed; with `KAFKA=host:9092` in the environment your own broker is used. Spark
reads the topic through a small data source in Python; if Spark's own connector is installed,
`spark.readStream.format("kafka")` replaces it and nothing else changes.

pip install confluent-kafka
python examples/kafka_orders.py [FOLDER]
"""

import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka as kafka
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import icestream as ice

ORDERS, SHOPS, TOPIC = 4_000, 5, f"orders-{os.getpid()}"
BEGIN = 1_772_366_400


class Topic(DataSource):
    """A topic as a stream of its records."""

    @classmethod
    def name(cls):
        """Return the name for `format`."""
        return "topic"

    def schema(self):
        """Return the columns, named as in Spark's own connector."""
        return "partition int, offset long, timestamp timestamp, value string"

    def streamReader(self, schema):
        """Return the reader."""
        return Reader(dict(self.options))


class Span(InputPartition):
    """The records of one partition from an offset up to another."""

    def __init__(self, partition, first, last):
        """Store the range to read."""
        self.partition, self.first, self.last = partition, first, last


class RecordsLost(RuntimeError):
    """The broker no longer has records that no batch has read."""


class Reader(DataSourceStreamReader):
    """Reports the offsets of the topic to Spark, and reads between two offsets.

    Partitions are assigned by offsets, never by a consumer group, so no rebalance moves them; new
    partitions are read from their begin. Records that the broker deleted before they were read are
    an error, as in Spark's own connector; with the option `failOnDataLoss` set to false, the query
    goes on after them.
    """

    def __init__(self, options):
        """Connect lazily: the reader is sent to tasks."""
        self.options = options
        self.skips = str(options.get("failOnDataLoss", "true")).lower() == "false"

    def _consumer(self):
        return kafka.Consumer(
            {
                "bootstrap.servers": self.options["servers"],
                "group.id": "none",
                "enable.auto.commit": False,
                # an offset that is gone is an error, not a jump to the newest record
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
            }
        )

    def _offsets(self, which):
        consumer, topic = self._consumer(), self.options["topic"]
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            ends = {
                each: consumer.get_watermark_offsets(kafka.TopicPartition(topic, each), timeout=30)
                for each in sorted(partitions)
            }
        finally:
            consumer.close()
        return {str(each): found[which] for each, found in ends.items()}

    def initialOffset(self):
        """Return the oldest offsets."""
        return self._offsets(0)

    def latestOffset(self, *_):
        """Return the newest offsets."""
        return self._offsets(1)

    def partitions(self, start, end):
        """Return the range of each task; a partition that is new is read from its begin."""
        oldest = self._offsets(0)
        firsts = {each: start.get(each, oldest.get(each, 0)) for each in {**start, **end}}
        for each, first in firsts.items():
            if end.get(each, -1) < first:
                self._lose(each, f"ends before offset {first}, where the query is: a new topic?")
            elif oldest.get(each, 0) > first:
                self._lose(each, f"begins at offset {oldest[each]}, the query is at {first}")
        return [
            Span(int(each), max(firsts[each], oldest.get(each, 0)), last)
            for each, last in end.items()
            if last > firsts[each]
        ]

    def _lose(self, partition, why):
        """Refuse to go on after a loss, unless that is wanted."""
        if not self.skips:
            msg = (
                f"partition {partition} of {self.options['topic']!r} {why}. Records were deleted "
                "before they were read: keep them longer on the broker (retention.ms), and start "
                "from a checkpoint that has them, or set failOnDataLoss to false to go on without"
            )
            raise RecordsLost(msg)

    def read(self, partition):
        """Yield the records of a span, each once, even if a task is repeated."""
        consumer, at = self._consumer(), partition.first
        place = kafka.TopicPartition(self.options["topic"], partition.partition, at)
        try:
            consumer.assign([place])
            while at < partition.last:
                for record in consumer.consume(1_000, timeout=1.0):
                    error = record.error()
                    if error is not None and error.code() == kafka.KafkaError._AUTO_OFFSET_RESET:
                        self._lose(partition.partition, f"no longer has offset {at}")
                        oldest, _ = consumer.get_watermark_offsets(place, timeout=30)
                        at = place.offset = max(at, oldest)
                        consumer.assign([place])
                        break
                    if error is not None and error.code() != kafka.KafkaError._PARTITION_EOF:
                        if error.fatal() or not error.retriable():
                            raise kafka.KafkaException(error)
                        continue
                    # offsets may have gaps: compaction and transactions leave them
                    if error is None and at <= record.offset() < partition.last:
                        when = datetime.fromtimestamp(record.timestamp()[1] / 1000, UTC)
                        yield partition.partition, record.offset(), when, record.value().decode()
                    at = max(at, record.offset() + (error is None))
        finally:
            consumer.close()


def produce(servers: str, first: int, last: int) -> None:
    """Send some orders to the topic, one each second of event time."""
    producer = kafka.Producer({"bootstrap.servers": servers})
    for number in range(first, last):
        order = {"shop": f"shop {number % SHOPS}", "price": 1 + number % 10}
        at = 1000 * (BEGIN + number)
        producer.produce(TOPIC, json.dumps(order), key=order["shop"], timestamp=at)
    assert producer.flush(60) == 0


def main(home: Path) -> None:
    """Process one half of the orders, then the other, and print how many were counted."""
    servers = os.environ.get("KAFKA")
    if servers is None:
        # the broker lives as long as this client
        broker = kafka.Producer({"test.mock.num.brokers": 1, "log_level": 3})
        [found] = broker.list_topics(timeout=30).brokers.values()
        servers = f"{found.host}:{found.port}"
    spark = ice.local_session()
    spark.dataSource.register(Topic)
    for half in (0, 1):
        produce(servers, half * ORDERS // 2, (half + 1) * ORDERS // 2)
        records = (
            spark.readStream.format("topic")
            .option("servers", servers)
            .option("topic", TOPIC)
            .load()
        )
        value = F.from_json("value", "shop string, price double")
        frame = records.select(F.col("timestamp").alias("at"), value.alias("v")).select("at", "v.*")
        orders = ice.stream(frame, time="at", slack="1 hour")
        revenue = orders.window("10 minutes").groupBy("shop")
        query = (
            revenue.agg(ice.count().alias("orders"), ice.sum("price").alias("revenue"))
            .writeStream.option("path", str(home / "revenue"))
            .option("checkpointLocation", str(home / "checkpoint"))
            .option("flush", half == 1)
            .memory("64 MB")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    rows = spark.read.parquet(str(home / "revenue"))
    rows.orderBy("window", "shop").show(SHOPS, truncate=False)
    told = rows.agg(F.sum("orders").alias("orders"), F.countDistinct("shop").alias("shops")).first()
    print("orders", told.orders, "shops", told.shops)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="kafka-orders-")))
