"""A small Spark cluster on this machine, whose workers have loopback addresses of their own.

Idea: real executors in processes of their own, so that they can be killed. Spark's speculation and
locality look at hosts, so every worker has its own address (127.0.0.2, 127.0.0.3, ...). Everything
comes from the pip package, through a private SPARK_HOME of links whose `work` folder is ours.

Invariants:
1. No process of the cluster outlives `stop` (`test_a_cluster_leaves_no_process_behind`).
2. Only processes that this cluster started are killed.

Limits: Linux, where all of 127.0.0.0/8 is loopback. All workers share one disk.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil
import pyspark
from pyspark.sql import SparkSession

from icestream.core.errors import IcestreamError
from icestream.runtime.on_spark.session import settings

#: seconds that a process of the cluster may take to come up
PATIENCE = 180.0

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "CoarseGrainedExecutorBackend"


class Cluster:
    """A master on 127.0.0.1 and workers with one executor each."""

    def __init__(self, workers: int = 2, cores: int = 1, memory_mb: int = 1024) -> None:
        """Start the processes and wait until the master knows every worker."""
        self._workers = workers
        self._memory_mb = memory_mb
        self._folder = tempfile.TemporaryDirectory(prefix="icestream-cluster-")
        self._home = _linked_home(Path(self._folder.name))
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            master = self._start("master", _MASTER, "127.0.0.1", "--port", "0", "--webui-port", "0")
            self.url = _found(r"Starting Spark master at (spark://\S+)", master)
            for number in range(workers):
                log = self._start(
                    f"worker-{number}",
                    _WORKER,
                    self.host(number),
                    *("--webui-port", "0", "--cores", str(cores), "--memory", f"{memory_mb}m"),
                    *("--work-dir", str(self._home / "work" / str(number)), self.url),
                )
                _found("Successfully registered with master", log)
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def host(worker: int) -> str:
        """Return the address of a worker."""
        return f"127.0.0.{worker + 2}"

    def session(self, name: str, conf: Mapping[str, str] | None = None) -> SparkSession:
        """Start an application with one executor on each worker, and wait for all of them."""
        chosen = {
            **settings(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executor.memory": f"{self._memory_mb}m",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE:.0f}s",
            "spark.sql.shuffle.partitions": str(self._workers),
            # what was on a dead executor is tried three times: on loopback soon is late enough
            "spark.shuffle.io.retryWait": "100ms",
            "spark.ui.enabled": "false",
            **(conf or {}),
        }
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName(name).master(self.url)
        for key, value in chosen.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel(chosen.get("spark.log.level", "ERROR"))
        self.await_executors()
        return session

    def executors(self, worker: int) -> list[psutil.Process]:
        """Return the executors that run on a worker."""
        found = []
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._processes[1 + worker].pid).children():
                with suppress(psutil.NoSuchProcess):
                    if any(_EXECUTOR in word for word in child.cmdline()):
                        found.append(child)
        return found

    def kill_executor(self, worker: int) -> None:
        """End the executor of a worker as a crash does; the worker starts another in its place."""
        for executor in self.executors(worker):
            _kill_tree(executor)

    def await_executors(self) -> None:
        """Wait until every worker has an executor."""
        _await(
            lambda: all(self.executors(worker) for worker in range(self._workers)),
            "an executor on every worker",
        )

    def await_registered(self, session: SparkSession) -> None:
        """Wait until an application has an executor on every worker that it can run tasks on."""
        context = session.sparkContext._jsc.sc()
        # the driver is among those that can hold blocks; Spark lists executors before they can
        _await(
            lambda: int(context.getExecutorMemoryStatus().size()) > self._workers,
            "executor registered for every worker",
        )

    def stop(self) -> None:
        """End all processes."""
        for process in reversed(self._processes):
            with suppress(psutil.NoSuchProcess):
                _kill_tree(psutil.Process(process.pid))
            process.wait()
        self._processes.clear()
        self._folder.cleanup()

    def __enter__(self) -> Cluster:
        """Return the running cluster."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it."""
        self.stop()

    def _start(self, name: str, kind: str, host: str, *arguments: str) -> Path:
        """Start one process of the cluster and return its log."""
        log = Path(self._folder.name, f"{name}.log")
        environment = {
            **os.environ,
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_DIRS": str(self._home / "local" / name),
        }
        environment.pop("SPARK_DIST_CLASSPATH", None)
        Path(environment["SPARK_LOCAL_DIRS"]).mkdir(parents=True)
        command = [str(self._home / "bin" / "spark-class"), kind, "--host", host, *arguments]
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    command, env=environment, stdout=out, stderr=out, start_new_session=True
                )
            )
        return log


def _linked_home(folder: Path) -> Path:
    """Make a SPARK_HOME of links to the package, with folders of its own for what is written."""
    home = folder / "home"
    (home / "work").mkdir(parents=True)
    package = Path(pyspark.__file__).parent
    for entry in package.iterdir():
        if entry.name not in ("work", "logs", "local"):
            (home / entry.name).symlink_to(entry)
    return home


def _found(pattern: str, log: Path) -> str:
    """Wait until a log has a line and return its first group, or all of the match."""
    match: list[re.Match[str]] = []

    def look() -> bool:
        match[:] = re.finditer(pattern, log.read_text(errors="replace"))
        return bool(match)

    _await(look, f"{pattern!r} in its log", log)
    return match[0][match[0].re.groups]


def _await(true: Callable[[], bool], what: str, log: Path | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            said = "" if log is None else f"; it says:\n{log.read_text(errors='replace')[-2000:]}"
            msg = f"the Spark cluster did not come up: no {what} after {PATIENCE:.0f} seconds{said}"
            raise IcestreamError(msg)
        time.sleep(0.1)


def _kill_tree(process: psutil.Process) -> None:
    """Kill a process and all it started, parents first so that nothing is started again."""
    family = [process, *process.children(recursive=True)]
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.send_signal(signal.SIGKILL)
    psutil.wait_procs(family, timeout=10)
