"""Expensive steps of user code: over batches of rows, pandas frames or single rows.

Idea: a stream, an update stream and windows of one have the same three words; they differ in which
rows a step gets: every event, the newest row of each key, or the newest answer of each key.
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.operators.latest.step import ARROW, PANDAS, ROWS

if TYPE_CHECKING:
    import pandas as pd

    from icestream.api.update_result import UpdateResult

ArrowFunction = Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table]
RowFunction = Callable[[dict[str, Any]], Mapping[str, Any] | None]


class StepWords:
    """What steps can be applied to."""

    @abstractmethod
    def _served(
        self, function: Any, schema: str | pa.Schema, form: str, retries: int
    ) -> UpdateResult:
        """Return the rows of a step."""

    def apply(
        self, function: ArrowFunction, schema: str | pa.Schema, *, retries: int = 0
    ) -> UpdateResult:
        """Apply an expensive step to many rows at once: the newest of each key, or every event.

        Args:
            function: takes an Arrow record batch, of an update stream with one row per key that is
                served, and returns rows as a record batch or table.
            schema: the columns it returns, as text or an Arrow schema; they include the key.
            retries: how often the function is called again if it fails.

        Examples:
            >>> calls.latestBy("symbol").apply(
            ...     lambda batch: batch.select(["symbol", "price"]), "symbol string, price double"
            ... ).columns
            ['symbol', 'price']
        """
        return self._served(function, schema, ARROW, retries)

    def applyInPandas(
        self,
        function: Callable[[pd.DataFrame], pd.DataFrame],
        schema: str | pa.Schema,
        *,
        retries: int = 0,
    ) -> UpdateResult:
        """Apply an expensive step to many rows at once, as pandas frames; see `apply`.

        Examples:
            >>> calls.latestBy("symbol").applyInPandas(
            ...     lambda frame: frame[["symbol", "price"]], "symbol string, price double"
            ... ).columns
            ['symbol', 'price']
        """
        return self._served(function, schema, PANDAS, retries)

    def map(
        self, function: RowFunction, schema: str | pa.Schema, *, retries: int = 0
    ) -> UpdateResult:
        """Apply an expensive step to one row at a time; the function maps dictionaries.

        A row for which the function returns None is dropped.

        Examples:
            >>> calls.latestBy("symbol").map(
            ...     lambda row: {"symbol": row["symbol"], "twice": row["price"] * 2},
            ...     "symbol string, twice double",
            ... ).columns
            ['symbol', 'twice']
        """
        return self._served(function, schema, ROWS, retries)
