"""The rows that shards of a task emit or refuse: one file of each kind for those of a part.

Invariant: on a disk a task creates and syncs as many of these files for many shards as for one
(`test_the_shards_of_a_task_share_their_result_file`).
"""

from __future__ import annotations

import pyarrow as pa

from icestream.state.files import Files
from icestream.state.log.format import SegmentInfo
from icestream.state.log.ipc import write_table
from icestream.state.log.writer import SegmentWriter
from icestream.state.versions.commits import RESULTS

#: kinds of files, as their names end
EMITTED, REFUSED = "rows", "late.rows"


class RowFiles:
    """The open files of a task; each is created with its first rows."""

    def __init__(self, files: Files, root: str, name: str, number: int, codec: str | None) -> None:
        """Write to files with this name, and to the header of each a number."""
        self._files = files
        self._path = f"{root}/{RESULTS}/{name}"
        self._number = number
        self._codec = codec
        self._writers: dict[str, SegmentWriter] = {}
        #: bytes of the rows
        self.bytes = 0

    def write(self, kind: str, batch: pa.RecordBatch, view: int = 0) -> None:
        """Append rows of a view."""
        if kind not in self._writers:
            path = f"{self._path}.{kind}"
            self._writers[kind] = SegmentWriter(self._files, path, self._number, codec=self._codec)
        data = write_table(batch)
        self.bytes += len(data)
        self._writers[kind].append(data, synopsis=view, rows=batch.num_rows)

    def finish(self) -> dict[str, SegmentInfo]:
        """Close the files and describe them, by kind; the caller syncs them."""
        return {kind: writer.finish(sync=False) for kind, writer in self._writers.items()}

    def abandon(self) -> None:
        """Remove the files after a failure."""
        for writer in self._writers.values():
            writer.abandon()
