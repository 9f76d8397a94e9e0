"""The result of a query before it is started.

Idea: the user may project and filter the rows of the windows (`select`, `where`). This happens to
the rows of a committed version on their way to the sink, so it changes no state.
"""

from __future__ import annotations

from dataclasses import dataclass

from icestream.api.projection import ProjectedRows
from icestream.api.shared_plan import BuiltQuery, Statement
from icestream.api.writer import StreamWriter
from icestream.plan.explain import explained
from icestream.plan.grid.cost import WindowStatistics
from icestream.plan.nodes.queries import Plan


@dataclass(frozen=True)
class Result(ProjectedRows):
    """The rows that a query computes; start it with `writeStream`.

    Examples:
        >>> kpis.where("count > 100").select("window.end", "serviceId").columns
        ['end', 'serviceId']
    """

    _built: BuiltQuery[Plan]
    _statement: Statement

    @property
    def writeStream(self) -> StreamWriter:
        """Return a writer that sets where the results go and starts the query.

        Examples:
            >>> writer = kpis.writeStream.format("parquet").option("path", "out").memory("64 MB")
        """
        return StreamWriter(self._statement, self._built, self._shape, self.schema)

    def explain(self, statistics: WindowStatistics | None = None) -> None:
        """Print what will be computed and how.

        With statistics of the stream, it also prints the size of both storage plans; a running
        query measures them itself and reports them in `lastProgress`.

        Examples:
            >>> kpis.explain()
                sources  [{'name': 'stream', ...
        """
        print(explained(self._built.plan, statistics))
