"""Jobs for tests, put together in a line or two, without Spark."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from icestream.core.times import Micros
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.jobs.building import JobStream
from icestream.plan.jobs.dataflow import compiled_job
from icestream.plan.jobs.fused import Fuse, Rates, planned_job
from icestream.plan.jobs.nodes import source_node
from icestream.plan.nodes import Source
from icestream.testing.stories.plans import INSTANT


def tuples_of(columns: pa.Schema, source: int = 0) -> JobStream:
    """Return the tuples of a source."""
    return JobStream((source_node(columns, source, f"source {source}"),))


def job_dataflow(
    *outputs: JobStream,
    columns: Sequence[pa.Schema],
    slack: Micros = 0,
    fuse: Fuse = "auto",
    rates: Rates | None = None,
) -> Dataflow:
    """Return the dataflow of a job whose sources are numbered by their tags."""
    plan = planned_job([each.node for each in outputs], fuse=fuse, rates=rates)
    sources = tuple(Source(f"source {number}", slack) for number in range(len(columns)))
    numbers = {number: number for number in range(len(columns))}
    return compiled_job(plan, numbers, sources, tuple(columns), INSTANT)
