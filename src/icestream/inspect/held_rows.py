"""The rows that hold, of a query in output mode `now`, from its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from icestream.core.clock import SystemClock
from icestream.core.errors import DefinitionError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.access.row_text import plain
from icestream.runtime.tables.current_table import CurrentTable


def now_rows(checkpoint: str, view: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table of a view; those of an update stream with their age."""
    found = Checkpoint(checkpoint)
    table = CurrentTable.of(found.files, found.root, view)
    if table.manifest() is None:
        msg = f"{checkpoint} keeps no table: run the query in outputMode('now')"
        raise DefinitionError(msg)
    for rows in table.read(SystemClock().now()):
        yield from map(plain, rows.to_pylist())
