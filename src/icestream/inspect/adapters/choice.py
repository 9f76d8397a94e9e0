"""Which adapter reads the state of a checkpoint."""

from __future__ import annotations

from icestream.core.errors import CheckpointError
from icestream.inspect.access.adapter_protocol import StateAdapter
from icestream.inspect.adapters.dataflow import DataflowState
from icestream.inspect.adapters.latest import UpdateState
from icestream.inspect.adapters.latest_windows import UpdateWindowState
from icestream.inspect.adapters.windows import WindowState
from icestream.plan.state_schema import DataflowSchema, NoSchema, StateSchema, UpdateSchema
from icestream.state.versions.commits import Commit


def readable(state_schema: StateSchema, commit: Commit) -> StateAdapter:
    """Choose the adapter for a state schema at a version; CheckpointError if there is none."""
    if isinstance(state_schema, NoSchema):
        msg = f"this checkpoint has no state that can be read: {state_schema.why}"
        raise CheckpointError(msg)
    if isinstance(state_schema, DataflowSchema):
        return DataflowState(state_schema, commit)
    if isinstance(state_schema, UpdateSchema):
        windowed = state_schema.windowed is not None
        return (
            UpdateWindowState(state_schema, commit)
            if windowed
            else UpdateState(state_schema, commit)
        )
    return WindowState(state_schema, commit)
