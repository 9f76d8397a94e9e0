"""The step done to every event, in the batch that brings it: what append streams are.

Idea: the baseline of update streams, in the same program. Nothing is kept and nothing is left out,
so a batch lasts as long as its events take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from icestream.core.clock import Clock
from icestream.core.times import Micros
from icestream.operators.protocol import Emitted, Inputs, PastVersion
from icestream.operators.updates.folding import Folded
from icestream.operators.updates.step import UpdateStep
from icestream.operators.updates.telling import Told


class AppendOperator:
    """Runs the step over all events of a batch."""

    #: every version stands without those before it
    took_snapshot = True
    released: tuple[int, ...] = ()

    def __init__(self, step: UpdateStep, clock: Clock) -> None:
        """Have seen nothing yet."""
        self._step = step
        self._clock = clock
        self._inputs: Inputs | None = None
        self._told = Told()

    def on_batch(self, inputs: Inputs) -> None:
        """Remember what the batch brought."""
        self._inputs = inputs

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        """Serve every event."""
        if self._inputs is None:
            return
        began = self._clock.monotonic()
        served = calls = 0
        for batch in self._inputs.tuples():
            yield 0, self._step(Folded(batch).payload)
            served, calls = served + batch.num_rows, calls + 1
        took = int(1e6 * (self._clock.monotonic() - began))
        self._told = Told(served=served, calls=calls, serving=took)

    def restore(self, history: Sequence[PastVersion]) -> None:
        """Have nothing to come back to."""

    @property
    def statistics(self) -> dict[str, Any]:
        """Return what the progress report tells of this shard."""
        return {"groups": 0, "partitions": 1, "updates": self._told.to_json()}
