"""Machine code is there before it is needed: made beside Spark's start, or sent to executors.

Idea: starting Java takes seconds in which Python has nothing to do. If the machine has no code for
the present sources, `local_session` starts a process that compiles beside it; the workers find what
it made. Once Spark runs, a job of nothing makes it start the process that forks workers, which
loads kernels while the user's program defines its query. On a cluster the code of the driver is a
file of the application, which Spark copies to executors, also to those that start later.

Invariants:
1. Where code is there, nothing is started (`test_a_warm_machine_starts_no_process`).
2. A session that was there before gets neither
   (`test_the_running_session_is_returned_with_the_recommended_settings`).
3. Executors with no code compile nothing that the driver has
   (`test_executors_compile_nothing_that_the_driver_has`).
4. A program that ends before its workers have started prints no error
   (`test_a_program_may_end_while_its_workers_start`).
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import weakref
from contextlib import suppress
from functools import partial

from pyspark import SparkContext

from icestream.kernels.code_archive import packed
from icestream.kernels.code_cache import code_folder, shipped_folders
from icestream.kernels.signatures import known_digests

#: the applications whose executors get code
_sent: weakref.WeakSet[SparkContext] = weakref.WeakSet()


def is_local(context: SparkContext) -> bool:
    """Return whether all tasks run on the machine of the driver."""
    master = str(context.master)
    return master.startswith("local") and not master.startswith("local-cluster")


def send_to_executors(context: SparkContext) -> None:
    """Let Spark copy the machine code of the driver to all executors of a cluster, once."""
    own = code_folder()
    if is_local(context) or context in _sent or own is None:
        return
    _sent.add(context)
    archive = packed([own, *shipped_folders()], known_digests(), os.path.join(own, "sent"))
    if archive is not None:
        context.addFile(archive)


def compile_beside() -> None:
    """Compile in another process what workers load first, and wait for it, unless there is code."""
    own = code_folder()
    roots = [*([] if own is None else [own]), *shipped_folders()]
    there = {digest for root in roots if os.path.isdir(root) for digest in os.listdir(root)}
    if known_digests() <= there:
        return
    subprocess.run([sys.executable, "-m", "icestream.runtime.spark.warm_up"], check=False)


def start_workers(context: SparkContext) -> None:
    """Let Spark start the process that forks workers; the session may be stopped meanwhile.

    A program that ends meanwhile takes the worker with it, and Spark would log that as an error.
    """
    quiet = partial(_log_nothing, context)
    atexit.register(quiet)
    with suppress(Exception):
        context.parallelize([0], 1).map(_nothing).count()
    atexit.unregister(quiet)


def _log_nothing(context: SparkContext) -> None:
    with suppress(Exception):
        context.setLogLevel("OFF")


def _nothing(number: int) -> int:
    return number
