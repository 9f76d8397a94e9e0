"""Alarms from readings that come through a TCP socket, by code with state for each sensor.

A thread sends readings, as a device would; Spark reads them from the socket. The processor is
called with many sensors at once and keeps a slow average of each: a reading far from it is an
alarm.

python examples/sensor_socket.py [FOLDER]
"""

import random
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from pyspark.sql import functions as F

import icestream as ice

READINGS, SENSORS = 2_000, 20
BEGIN = 1_772_366_400


class Deviations(ice.VectorisedProcessor):
    """Compares the mean of a batch of readings with the sensor's usual mean."""

    state = {"usual": ice.ValueState("n long, mean double")}
    output = "sensor long, mean double, usual double"

    def process(self, batch, state):
        """Emit the current and the usual mean of each sensor."""
        old = state.usual.numpy()
        mean = batch.reduce(np.add, "degrees") / batch.sizes
        usual = np.where(old["n"] > 0, old["mean"], mean)
        n = old["n"] + batch.sizes
        state.usual.set([n, usual + (mean - usual) * batch.sizes / n])
        return [batch.keys["sensor"], mean, usual]


def send_readings(server: socket.socket, half_seen: threading.Event) -> None:
    """Send lines of time, sensor and degrees to the first client; sensor 7 fails half-way."""
    client, _ = server.accept()
    draw = random.Random(1)
    with client:
        for number in range(READINGS):
            sensor = number % SENSORS
            failing = sensor == 7 and number > READINGS // 2
            degrees = draw.gauss(60.0 if failing else 20.0, 1.0)
            client.sendall(f"{BEGIN + number} {sensor} {degrees:.2f}\n".encode())
            if number == READINGS // 2:
                half_seen.wait()


def main(home: Path) -> None:
    """Read, process, and print which sensors deviate."""
    server = socket.create_server(("127.0.0.1", 0))
    half_seen = threading.Event()
    threading.Thread(target=send_readings, args=(server, half_seen), daemon=True).start()
    spark = ice.local_session()
    lines = (
        spark.readStream.format("socket")
        .option("host", "127.0.0.1")
        .option("port", server.getsockname()[1])
        .load()
    )
    parts = F.split("value", " ")
    frame = lines.select(
        F.timestamp_seconds(parts[0].cast("long")).alias("at"),
        parts[1].cast("long").alias("sensor"),
        parts[2].cast("double").alias("degrees"),
    )
    readings = ice.stream(frame, time="at").events()
    told = readings.groupApply("sensor", lambda sensor: sensor.process(Deviations()))
    query = (
        told.writeStream.option("path", str(home / "told"))
        .option("checkpointLocation", str(home / "checkpoint"))
        .memory("64 MB")
        .start()
    )
    seen = 0
    while seen < READINGS and query.isActive:
        time.sleep(0.2)
        seen = sum(progress["numInputRows"] for progress in query.recentProgress)
        if seen > READINGS // 2:
            half_seen.set()
    query.stop()
    rows = spark.read.parquet(str(home / "told"))
    alarms = rows.where("abs(mean - usual) > 5").select("sensor").distinct()
    print("readings", seen, "alarms", [row.sensor for row in alarms.orderBy("sensor").collect()])
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="sensor-socket-")))
