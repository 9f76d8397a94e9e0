"""State as a Parquet file, written batch by batch and visible only once it is complete."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq

from icestream.core.errors import DefinitionError
from icestream.inspect.state_rows import Reading
from icestream.state.files import PRIVATE_FILE, temporary_name


def write_parquet(reading: Reading, target: Path) -> int:
    """Export rows of state to a new Parquet file, readable by this user only; count them."""
    if target.exists():
        msg = f"{target} already exists; name a new file"
        raise DefinitionError(msg)
    temporary = temporary_name(str(target))
    rows = 0
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        with os.fdopen(handle, "wb") as file, pq.ParquetWriter(file, reading.schema) as writer:
            for batch in reading.batches():
                writer.write_batch(batch)
                rows += batch.num_rows
        os.link(temporary, target)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return rows
