"""A Spark session with the settings that Icestream recommends; the user's settings stay.

Idea: every setting is a default. `local_session` starts Spark on this machine; `settings()` is the
same list for a cluster's own configuration.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from icestream.core.errors import IcestreamError
from icestream.runtime.spark.machine_code import compile_beside, start_workers

#: PySpark's error class if Java does not start
_NO_JAVA = "JAVA_GATEWAY_EXITED"
_DEFAULTS = {
    # small jobs with known numbers of tasks: re-planning costs more than it saves
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "icestream.runtime.spark.daemon",
    # checkpoints on a local disk need no rename through the checksum file system
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.ui.showConsoleProgress": "false",
    "spark.shuffle.compress": "false",
}
#: Java schedules and passes bytes on: only what runs very often is worth the optimising compiler,
#: which takes more processor time than the rest of Java in the first minutes of a query
_COMPILES_LATE = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)


def zone_of(spark: SparkSession) -> str:
    """Return the time zone of a session, by a name that Arrow knows; UTC for all of its names."""
    jvm: Any = spark._jvm
    dates = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils
    name = dates.getZoneId(spark.conf.get("spark.sql.session.timeZone")).normalized().getId()
    return "UTC" if name == "Z" else str(name)


def settings() -> dict[str, str]:
    """Return the settings that Icestream recommends for a Spark session.

    Examples:
        >>> ice.settings()["spark.python.daemon.module"]
        'icestream.runtime.spark.daemon'
    """
    return dict(_DEFAULTS)


def local_session(
    app_name: str = "icestream",
    cores: int | None = None,
    memory: str = "2g",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a Spark session on this machine, or return the running one.

    Args:
        app_name: the name in Spark's own pages.
        cores: tasks that run at once; all cores of the machine by default.
        memory: heap of the one Java process.
        conf: settings that override the recommended ones.

    Examples:
        >>> spark = ice.local_session(cores=2, conf={"spark.sql.session.timeZone": "UTC"})
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = {
        **_DEFAULTS,
        "spark.driver.memory": memory,
        "spark.driver.defaultJavaOptions": _COMPILES_LATE,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(cores or os.cpu_count() or 2),
        **(conf or {}),
    }
    builder = SparkSession.builder.appName(app_name).master(f"local[{cores or '*'}]")
    for name, value in chosen.items():
        builder = builder.config(name, value)
    starts = SparkContext._active_spark_context is None
    if starts:
        threading.Thread(target=compile_beside, name="icestream-machine-code", daemon=True).start()
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != _NO_JAVA:
            raise
        msg = (
            "Spark could not start Java: install Java 17 or newer (Debian: apt-get install "
            "openjdk-17-jre-headless), or set JAVA_HOME to one; `icestream doctor` checks it"
        )
        raise IcestreamError(msg) from error
    session.sparkContext.setLogLevel((conf or {}).get("spark.log.level", "ERROR"))
    if starts:
        _write_without_checksums(session)
        start = partial(start_workers, session.sparkContext)
        threading.Thread(target=start, name="icestream-workers", daemon=True).start()
    return session


def _write_without_checksums(session: SparkSession) -> None:
    """Write no `.crc` beside each local file: Hadoop starts a process per file, for its mode."""
    jvm: Any = session._jvm
    hadoop = session._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(hadoop).setWriteChecksum(False)
