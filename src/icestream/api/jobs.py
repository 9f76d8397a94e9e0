"""Jobs: the operators `map`, `compute` and `consolidate` over tuples, with user functions.

    loans = ice.job(ice.stream(df, time="date", slack="1 minute"))
    rated = loans.map(interest)
    sums = rated.compute(add, key="area", initial={"n": 0, "total": 0.0})
    means = sums.consolidate(merge, windows=["10 minutes", "1 hour", "24 hours"])
    means.writeStream.option("path", "out").option("checkpointLocation", "chk").start()

Idea: a tuple has named attributes and a time span [ts1, ts2). Each method adds an operator. When
the job starts, the planner chooses which operators share a component and what windows share;
`explain` shows it. Several results of a job are one query:
`ice.start(a.writeStream, b.writeStream)`.
"""

# The names are those of PySpark's DataFrames.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from icestream.api.event_writer import built
from icestream.api.shared_plan import BuiltQuery, StreamInput
from icestream.api.writer import StreamWriter
from icestream.core.errors import DefinitionError
from icestream.plan.events.dataflow import Dataflow
from icestream.plan.jobs.building import JobStream
from icestream.plan.jobs.dataflow import compiled_job
from icestream.plan.jobs.explain import drawn_job, explained_job
from icestream.plan.jobs.planning import Fuse, JobPlan, Rates, planned_job
from icestream.plan.nodes.jobs import source_node
from icestream.runtime.spark.sink import as_they_are

if TYPE_CHECKING:
    from icestream.api.stream import Stream

#: numbers that identify sources while a job is written
_TAGS = count()


def job(stream: Stream) -> Tuples:
    """Return a stream as the tuples of a job: each event spans the instant of its time.

    Examples:
        >>> ice.job(calls).map(
        ...     lambda call: {"minutes": call["busyTime"] / 60}, output="minutes double"
        ... ).columns[-1]
        'minutes'
    """
    parts = {next(_TAGS): part for part in stream._parts}
    nodes = [source_node(part.columns, tag, part.name) for tag, part in parts.items()]
    streams = [Tuples((node,), _parts=parts) for node in nodes]
    return streams[0]._united(streams[1:])


@dataclass(frozen=True)
class Tuples(JobStream):
    """Tuples of a job: named attributes and a time span [ts1, ts2).

    Examples:
        >>> busy = ice.job(calls).compute(
        ...     lambda state, call: {"n": state["n"] + 1},
        ...     key="agent",
        ...     initial={"n": 0},
        ...     window="1 hour",
        ... )
        >>> busy.columns
        ['agent', 'n']
    """

    #: the sources of the tuples, by tag
    _parts: Mapping[int, StreamInput] = field(repr=False, kw_only=True)
    _fuse: Fuse = "auto"
    _rates: Rates | None = None

    @property
    def columns(self) -> list[str]:
        """Return the names of the attributes.

        Examples:
            >>> ice.job(calls).columns
            ['timestamp', 'busyTime', 'price', 'volume', 'serviceId', 'symbol', 'userId', 'agent']
        """
        return list(self._payload.names)

    def union(self, other: Tuples) -> Tuples:
        """Return the tuples of both; their attributes must agree.

        Examples:
            >>> both = ice.job(calls).union(ice.job(calls))
        """
        given: object = other
        if not isinstance(given, Tuples):
            msg = f"union takes other tuples of a job (ice.job(stream)); got {type(other).__name__}"
            raise DefinitionError(msg)
        both = replace(self, _parts={**self._parts, **other._parts})
        return both._united([other])

    def fused(self, fuse: Fuse = "auto", rates: Rates | None = None) -> Tuples:
        """Choose which operators share a component, so that nothing is exchanged between them.

        Args:
            fuse: `auto` fuses operators that can be partitioned alike; `none` fuses nothing;
                `measured` decides batch by batch and fuses operators with the same partitioning
                while many tuples flow between them; or give lists of names of operators to fuse. A
                job that was started with `none` or `measured` accepts `query.fuse(...)` while it
                runs.
            rates: measured tuples per second by the names of two operators,
                `{("interest", "add"): 1000.0}`; `auto` then fuses where most tuples flow.

        Examples:
            >>> apart = counted.fused("none")
        """
        return replace(self, _fuse=fuse, _rates=rates)

    @property
    def writeStream(self) -> StreamWriter:
        """Return a writer that sets where the results go and starts the job.

        Examples:
            >>> writer = counted.writeStream.format("noop").memory("64 MB")
        """
        alone = _built([self])
        return StreamWriter(None, alone, as_they_are, alone.rows[0], _result=self, _together=_built)

    @property
    def schema(self) -> StructType:
        """Return the columns of the rows: `lifetime` with ts1 and ts2, then the attributes.

        Examples:
            >>> counted.schema.names
            ['lifetime', 'agent', 'n']
        """
        return _built([self]).rows[0]

    def explain(self, *others: Tuples, svg: str | Path | None = None) -> None:
        """Print components and exchanges of this result and of others of the job.

        Args:
            *others: further results that are started with this one.
            svg: the path of a drawing to write.

        Examples:
            >>> counted.explain()
            component 0, partitioned by agent; ...
        """
        plan = _planned([self, *others])
        print(explained_job(plan))
        if svg is not None:
            Path(svg).write_text(drawn_job(plan), encoding="utf-8")


def _planned(results: Sequence[Tuples]) -> JobPlan:
    lead = results[0]
    return planned_job([each._node for each in results], fuse=lead._fuse, rates=lead._rates)


def _built(results: Sequence[object], _modes: Sequence[str] = ()) -> BuiltQuery[Dataflow]:
    """Return the projection of the sources and the dataflow; the first result sets fusion."""
    given = [each for each in results if isinstance(each, Tuples)]
    if len(given) < len(results):
        msg = "a result of a job can be started only with results of the same job"
        raise DefinitionError(msg)
    sources = {tag: part for each in given for tag, part in each._parts.items()}
    columns = {tag: part.columns for tag, part in sources.items()}
    return built(sources, columns, partial(compiled_job, _planned(given)))
