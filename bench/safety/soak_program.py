"""The program under faults: one app over existing files, to its end.

Idea: it continues where its last run ended. Undisturbed it is the demo's query; otherwise its disk
is slow and full at times, its clock jumps, and every start uses another number of files per batch.
At the end it lists what a reader of its results sees.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq

import icestream as ice
from bench.safety.soak import REFUSED, seen_file
from bench.safety.soak_apps import APPS
from icestream.core.clock import SystemClock
from icestream.core.errors import StorageError
from tests.faults.failing_disk import FailingDisk

#: maximum jump of the clock in microseconds
_JUMP = 3_600_000_000


class _JumpingClock(SystemClock):
    """A clock that is set again and again."""

    def now(self) -> int:
        """Return the time of day, off by up to an hour."""
        return super().now() + random.randint(-_JUMP, _JUMP)


def run(app: str, events: Path, own: Path, *, tormented: bool) -> None:
    """Run an app to its end."""
    spark = ice.local_session("soak", memory="1g")
    chosen = APPS[app]
    files = random.choice((1, 2, 7, 20)) if tormented else 1
    with ExitStack() as torments:
        if tormented:
            disk = FailingDisk(full=0.002, slow=0.05)
            patch = mock.patch("icestream.api.writer._files_at", return_value=disk)
            torments.enter_context(patch)
            torments.enter_context(
                mock.patch("icestream.runtime.driver.SystemClock", _JumpingClock)
            )
        chosen.start(spark, events, own, files).awaitTermination()
    for name in chosen.results:
        seen = spark.read.parquet(str(own / "results" / name)).toArrow()
        pq.write_table(seen, seen_file(own, name))


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    try:
        run(
            asked["app"],
            Path(asked["events"]),
            Path(asked["own"]),
            tormented=asked["tormented"],
        )
    except StorageError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)
