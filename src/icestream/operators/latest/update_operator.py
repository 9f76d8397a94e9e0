"""Steps that run on every event, in the batch in which it arrives, as on an append stream.

Idea: the baseline of update streams, in the same program. Nothing is stored and nothing is skipped,
so a batch lasts as long as its events take. If there are also steps over the newest values, these
run first, and the others get the remaining time.

Invariant: every step gets every event once
(`test_steps_over_all_and_over_the_newest_side_by_side`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icestream.core.clock import Clock
from icestream.core.times import Micros
from icestream.operators.latest.coalescing import NewestUpdates
from icestream.operators.latest.pacing import ServingTime
from icestream.operators.latest.report import ServingReport
from icestream.operators.latest.serving import ServingOperator
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


class NewestOperator:
    """Serves the newest values, and every event to the steps that need all."""

    def __init__(self, newest: ServingOperator, every: AppendOperator | None) -> None:
        """Combine both operators; only the one for the newest values has state."""
        self._newest = newest
        self._every = every

    def on_batch(self, inputs: UpdateInputs) -> None:
        self._newest.on_batch(inputs.newest)
        if self._every is not None:
            self._every.on_batch(inputs)

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Serve every event, then the newest in the time that is left."""
        if self._every is not None:
            yield from self._every.on_watermark(watermark)
        yield from self._newest.on_watermark(watermark)

    def restore(self, history: Sequence[PastVersion]) -> None:
        self._newest.restore(history)

    @property
    def took_snapshot(self) -> bool:
        return self._newest.took_snapshot

    @property
    def released(self) -> tuple[int, ...]:
        """Return the ordinals of segments that a snapshot has replaced."""
        return self._newest.released

    @property
    def statistics(self) -> dict[str, Any]:
        found = self._newest.statistics
        if self._every is None:
            return found
        report, more = self._newest.report, self._every.report
        both = replace(
            report,
            served=report.served + more.served,
            calls=report.calls + more.calls,
            serving=report.serving + more.serving,
        )
        return {**found, "updates": both.to_json()}
