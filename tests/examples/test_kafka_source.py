"""The Kafka source of the example, against the broker that its client library contains."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

kafka: Any = pytest.importorskip("confluent_kafka")
example: Any = pytest.importorskip("examples.kafka_orders")

_NUMBERS = count()


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    broker = kafka.Producer({"test.mock.num.brokers": 2, "log_level": 3})
    yield ",".join(f"{b.host}:{b.port}" for b in broker.list_topics(timeout=30).brokers.values())
    del broker


@pytest.fixture
def topic(servers: str) -> str:
    name = f"topic-{next(_NUMBERS)}"
    send(servers, name, ["first"])
    return name


def send(servers: str, topic: str, values: list[str], partition: int = 0) -> None:
    producer = kafka.Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(60) == 0


def read(reader: Any, start: Any, end: Any) -> list[str]:
    return [row[3] for span in reader.partitions(start, end) for row in reader.read(span)]


def outgrown(servers: str, topic: str) -> None:
    """Send more than the broker keeps of a partition: 5 MB."""
    send(servers, topic, [f"{number} " + "x" * 200_000 for number in range(40)])


def test_records_that_retention_deleted_are_an_error_unless_they_may_be_skipped(
    servers: str, topic: str
) -> None:
    options = {"servers": servers, "topic": topic}
    reader = example.Reader(options)
    start = reader.initialOffset()
    outgrown(servers, topic)
    end = reader.latestOffset()
    oldest = reader.initialOffset()["0"]
    assert (start["0"], end["0"]) == (0, 41)
    assert oldest > 0
    with pytest.raises(example.RecordsLost, match=rf"begins at offset {oldest}, the query is at 0"):
        reader.partitions(start, end)
    # deleted between planning and reading, or before a task is repeated
    with pytest.raises(example.RecordsLost, match="no longer has offset 0"):
        list(reader.read(example.Span(0, 0, 41)))
    lenient = example.Reader({**options, "failOnDataLoss": "false"})
    numbers = [int(value.split()[0]) + 1 for value in read(lenient, start, end)]
    assert numbers == list(range(oldest, 41))
    assert len(list(lenient.read(example.Span(0, 0, 41)))) == len(numbers)


def test_a_topic_that_was_made_anew_is_an_error(servers: str, topic: str) -> None:
    reader = example.Reader({"servers": servers, "topic": topic})
    end = reader.latestOffset()
    with pytest.raises(example.RecordsLost, match="ends before offset 99"):
        reader.partitions({**end, "0": 99}, end)
    with pytest.raises(example.RecordsLost, match="partition 77"):
        reader.partitions({**end, "77": 5}, end)


def test_a_partition_that_is_new_is_read_from_its_begin(servers: str, topic: str) -> None:
    send(servers, topic, ["a", "b"], partition=1)
    reader = example.Reader({"servers": servers, "topic": topic})
    end = reader.latestOffset()
    start = {each: end[each] for each in end if each != "1"}
    assert read(reader, start, end) == ["a", "b"]
    assert reader.partitions(end, end) == []


def test_a_rebalance_of_the_consumer_group_moves_nothing(servers: str, topic: str) -> None:
    """Another consumer joins the group of the reader and leaves it while records are read."""
    values = [f"value {number}" for number in range(3_000)]
    send(servers, topic, values)
    stop = threading.Event()

    def join_and_leave() -> None:
        while not stop.is_set():
            other = kafka.Consumer({"bootstrap.servers": servers, "group.id": "none"})
            other.subscribe([topic])
            other.poll(0.3)
            other.close()

    thread = threading.Thread(target=join_and_leave)
    thread.start()
    try:
        reader = example.Reader({"servers": servers, "topic": topic})
        end = reader.latestOffset()
        found = [read(reader, {**end, "0": 0}, end) for _ in range(2)]
    finally:
        stop.set()
        thread.join()
    assert found == [["first", *values]] * 2
