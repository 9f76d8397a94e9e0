"""A table that holds one row for each key: versions are merged into it once.

Idea: a version brings the rows of keys that changed, and of keys that have no row any more. The
transaction that replaces them also records the version under the identity of the query, so that a
version that comes again changes nothing.

Invariant: whoever merges a version, and however often, the table holds the rows of its last version
(`test_replaying_versions_changes_nothing_in_an_upserted_table`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import pyarrow as pa

from icestream.core.errors import DefinitionError
from icestream.state.keys import KeyCodec

#: column that is negative in the row of a key that has none any more
CHANGE = "change"


class UpsertTable(ABC):
    """A table that follows the rows that hold."""

    def __init__(self, key: Sequence[str], columns: pa.Schema) -> None:
        """Identify rows by some of their columns; without any there is one row."""
        self._key = tuple(key)
        self._keys = pa.schema([columns.field(name).with_nullable(True) for name in key])

    def merge(self, version: int, rows: pa.Table) -> None:
        """Replace or delete the rows of keys, unless this version was merged before."""
        if rows.num_rows == 0 or version <= self._latest():
            return
        if CHANGE not in rows.column_names:
            rows = rows.append_column(CHANGE, pa.array([1] * rows.num_rows, pa.int32()))
        if len(set(self._identities(rows))) < rows.num_rows:
            msg = (
                f"rows of this result are not unique by {', '.join(self._key)}, as a table that "
                "follows them needs: aggregate them, or use foreachBatch(...)"
            )
            raise DefinitionError(msg)
        self._merge(version, rows)

    def _identities(self, rows: pa.Table) -> Iterator[tuple[int, int]]:
        """Return the two words that identify the key of each row, also of nulls and of windows."""
        if not self._key:
            return iter([(0, 0)] * rows.num_rows)
        chosen = rows.select([*self._key]).cast(self._keys).combine_chunks().to_batches()
        batch = chosen[0] if chosen else pa.RecordBatch.from_pylist([], schema=self._keys)
        high, low = KeyCodec(self._keys).identify(batch)
        return zip(high.tolist(), low.tolist(), strict=True)

    @abstractmethod
    def _latest(self) -> int:
        """Return the last version that was merged, or -1."""

    @abstractmethod
    def _merge(self, version: int, rows: pa.Table) -> None:
        """Replace the rows of keys by those whose change is positive, in one transaction."""
