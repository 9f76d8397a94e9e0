"""Columns over frames as whole queries, beside the obvious computation and beside SQL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from icestream.operators.dataflow import gather
from icestream.operators.frames import event_frames, operator, tuples
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.events.features import UP_TO_TIME, FeatureCall, with_features
from icestream.plan.windows.frame import Frame
from icestream.runtime.local import LocalQuery
from icestream.testing.sources import SECOND, StreamShape, batches_of, drive
from tests.fixtures import dataflow_plans as plans
from tests.suites.dataflow_conformance import (
    DataflowConformance,
    open_dataflow,
    small_sizes,
    stream_of,
)


@contextmanager
def small_blocks(size: int = 512) -> Iterator[None]:
    """Let little data fill several blocks and chunks."""
    with ExitStack() as stack:
        for module in (operator, tuples, event_frames, gather):
            stack.enter_context(mock.patch.object(module, "BLOCK_BYTES", size))
        yield


class _OverConformance(DataflowConformance):
    exact = True

    def open(self, folder: Path, *, shards: int = 2) -> LocalQuery:
        return open_dataflow(self.flow, folder, shards=shards, budget=256 << 20)

    def check_cold(self, folder: Path, flow: Dataflow, *, reopen: bool = False) -> None:
        """Run with memory for a part of the groups, in partitions of them."""
        items, expected = self.many()
        budget, partitions, tables = 48 * 1024 * len(flow.components), 0, []
        with small_sizes(quota=1024, chunk=256), small_blocks():
            for number, batch in enumerate(batches_of(items)):
                if number == 0 or (reopen and number == 4):
                    query = open_dataflow(flow, folder, budget=budget, shards=1)
                (delivery,) = query.driver.batch(query.next_batch, batch)
                facts = delivery.progress["icestream"]
                assert facts["peakMemoryBytes"] <= budget
                partitions = max(partitions, facts["partitions"])
                tables.append(query.rows([delivery]))
            tables.append(query.flush())
        assert partitions > len(flow.components), "no partition was evicted: nothing was tested"
        self.compare(tables, expected)


class TestOver(_OverConformance):
    flow = plans.over()


class TestOverResults(_OverConformance):
    flow = plans.over_results()
