"""Which process runs which tests: those with Spark start first, on two of the processes.

Idea: a process that runs a test with Spark starts a JVM, which takes seconds and a gigabyte. Such
modules have few tests and wait a lot; left to the end, every process would start a JVM for them.
So two processes take them first while the others compute, and whoever has nothing left helps.

Invariants: no module is left out, and a process with a JVM prefers modules that use it
(`test_tests_with_spark_start_first_on_two_processes`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling

#: processes that begin with tests that use Spark
PROCESSES = 2
_USES_SPARK = re.compile(r"\bSparkSession\b")


class SparkFirst(LoadScopeScheduling):  # type: ignore[misc]
    """Modules stay whole, as with `--dist loadscope`."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        self._with_spark: set[Any] = set()

    def _assign_work_unit(self, node: Any) -> None:
        prefers = node in self._with_spark or len(self._with_spark) < PROCESSES
        scope = next_scope(list(self.workqueue), Path(self.config.rootpath), prefers)
        if uses_spark(scope, Path(self.config.rootpath)):
            self._with_spark.add(node)
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def next_scope(waiting: Sequence[str], root: Path, with_spark: bool) -> str:
    """Return the first module that uses Spark, or that does not; the first of all without one."""
    fitting = (scope for scope in waiting if uses_spark(scope, root) == with_spark)
    return next(fitting, waiting[0])


@cache
def uses_spark(scope: str, root: Path) -> bool:
    """Return whether a module names Spark's sessions, as every test that is given one does."""
    return bool(_USES_SPARK.search((root / scope.partition("::")[0]).read_text()))
