"""A component whose first step keeps its own state: it reads the input itself, others follow.

Idea: frames over events and the place where their results meet store neither groups nor rows by
group, so they take the place of a component's stores. A version gives such a step its inputs and
the watermark, and passes on what it yields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import pyarrow as pa

from icestream.core.times import Micros
from icestream.operators.dataflow.component import ComponentOperator
from icestream.operators.dataflow.spec import ComponentSpec
from icestream.operators.dataflow.stores import Stores
from icestream.operators.protocol import ChangeInputs, Emitted, PastVersion, Recoverable, Shard


class StepWithState(Recoverable, Protocol):
    """What such a step does."""

    def run(self, inputs: ChangeInputs | None, watermark: Micros) -> Iterator[pa.RecordBatch]:
        """Process the inputs of a batch, and a watermark; yield what is final."""


class SoleStepComponent(ComponentOperator):
    """Runs a step with its own state, and the steps after it."""

    def __init__(self, spec: ComponentSpec, shard: Shard, state: StepWithState) -> None:
        super().__init__(spec, shard, cast("Stores", state))
        self._state = state

    def on_watermark(self, watermark: Micros) -> Iterator[Emitted]:
        number = self._spec.sole_number
        for made in self._state.run(self._inputs, watermark):
            yield from self._pass_on(number, made, watermark)
        for view, buffer in self._buffer.items():
            yield from self._rows(view, buffer.rest())

    @property
    def follows(self) -> bool:
        return False

    def restore(self, history: Sequence[PastVersion]) -> None:
        self._state.restore(history)
