"""One adapter for each kind of operator: how its state is read."""

from __future__ import annotations

from icestream.core.errors import CheckpointError
from icestream.inspect.adapters.dataflow import DataflowState
from icestream.inspect.adapters.update_windows import UpdateWindowState
from icestream.inspect.adapters.updates import UpdateState
from icestream.inspect.adapters.windows import WindowState
from icestream.inspect.readable import Readable
from icestream.plan.legend import Groups, Legend, Nothing, Waiting
from icestream.state.versions import Commit


def readable(legend: Legend, commit: Commit) -> Readable:
    """Return the adapter for a legend, as of a version; CheckpointError if there is none."""
    if isinstance(legend, Nothing):
        msg = f"there is no state to read in this checkpoint: {legend.why}"
        raise CheckpointError(msg)
    if isinstance(legend, Groups):
        return DataflowState(legend, commit)
    if isinstance(legend, Waiting):
        windowed = legend.windowed is not None
        return UpdateWindowState(legend, commit) if windowed else UpdateState(legend, commit)
    return WindowState(legend, commit)
