"""What an object aggregate computes: windows, aggregates, and the types of keys and inputs."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from icestream.operators.aggregates.aggregate import Aggregate
from icestream.plan.windows.grid import Cumulative, Windows


@dataclass(frozen=True)
class ObjectSpec:
    """What an object aggregate computes, with the types of its inputs."""

    windows: Windows | Cumulative
    aggregates: tuple[Aggregate, ...]
    keys: pa.Schema
    inputs: pa.Schema

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Return the type of each input column."""
        return {field.name: field.type for field in self.inputs}
