"""Steps that run on every event, in the batch in which it arrives, as on an append stream.

Idea: the baseline of update streams, in the same program. Nothing is stored and nothing is skipped,
so a batch lasts as long as its events take. If there are also steps over the newest values, these
get the remaining time.

Invariant: every step gets every event once
(`test_steps_over_all_and_over_the_newest_side_by_side`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icestream.core.clock import Clock
from icestream.core.times import Micros
from icestream.operators.latest.coalescing import NewestUpdates
from icestream.operators.latest.pacing import ServingTime
from icestream.operators.latest.report import ServingReport
from icestream.operators.latest.step import UpdateStep
from icestream.operators.protocol import Emitted, Inputs, PastVersion


@dataclass(frozen=True)
class UpdateInputs:
    """The input of a shard: the newest update of each key, and every event."""

    newest: Inputs
    every: Inputs


class AppendOperator:
    """Runs steps over all events of a batch."""

    #: every version is independent of earlier ones
    took_snapshot = True
    released: tuple[int, ...] = ()

    def __init__(self, steps: Mapping[int, UpdateStep], clock: Clock, time: ServingTime) -> None:
        """Start empty; steps are by number of the view, `time` counts what they take."""
        self._steps = steps
        self._time = time
        self._clock = clock
        self._inputs: Inputs | None = None
        #: report of the version
        self.report = ServingReport()

    def on_batch(self, inputs: UpdateInputs) -> None:
        self._inputs = inputs.every

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Serve every event."""
        if self._inputs is None:
            return
        began = self._clock.monotonic()
        served = calls = 0
        for batch in self._inputs.tuples():
            for view, step in self._steps.items():
                for made in step.served(NewestUpdates(batch).payload):
                    yield view, made
                served, calls = served + batch.num_rows, calls + 1
        took = int(1e6 * (self._clock.monotonic() - began))
        self._time.spent += took
        self.report = ServingReport(served=served, calls=calls, serving=took)

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Do nothing: there is no state."""

    @property
    def statistics(self) -> dict[str, Any]:
        return {"groups": 0, "partitions": 1, "updates": self.report.to_json()}
