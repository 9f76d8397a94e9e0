"""What a session window is, and what is computed over it.

Idea: a session is `[first event, last event + gap)`. An event that arrives exactly at its end still
belongs to it, so a pause of exactly the gap does not separate two sessions, as in Spark's
`session_window`.

Invariants:
1. An event is late exactly when the watermark has reached its time plus the gap
   (`test_an_event_is_late_when_the_watermark_reached_its_own_end`).
2. Aggregates whose state is an object are rejected when the query is defined
   (`test_an_aggregate_with_an_object_is_refused`).
"""

from __future__ import annotations

from dataclasses import dataclass

from icestream.operators.aggregates.aggregate import AggregateSpec
from icestream.plan.windows.session import Session

#: places of the words before the fields of a session; its identity is in the first two
START = 2
END = 3
SESSION_FIELDS = 4


@dataclass(frozen=True)
class SessionSpec(AggregateSpec):
    """What a session aggregate computes, with the types of its inputs."""

    session: Session

    def __post_init__(self) -> None:
        """Reject aggregates that sessions cannot store."""
        self.refuse_objects(
            "sessions: use it over window(...), or an aggregate of fixed size such as count, sum, "
            "avg, min, max, variances, first and last"
        )
