"""The columns of the stream `AgentInteractions`, one row per step of a customer's request.

Idea: there is one list of columns; the Arrow schema and Spark's schema are both made from it, so
the files and the query that reads them cannot disagree.

Invariants:
1. A row has 94 bytes, the event size that the paper states
   (`test_oracle_a_row_has_the_94_bytes_of_the_source`). The printed schema is cut off after `help`;
   read as `int` it gives exactly these 94 bytes, so nothing else is missing.

Limits: `timestamp` is a timestamp here, but a long in the paper, because Spark's windows need one;
`start` stays a long, in microseconds since the epoch.

References: Shared SlideM, appendix A, figure 12.
"""

from __future__ import annotations

import pyarrow as pa

_ARROW_TYPES = {
    "timestamp": pa.timestamp("us", tz="UTC"),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
}

#: name -> Spark's name of the type, in the order of the paper
COLUMNS: dict[str, str] = {
    "timestamp": "timestamp",
    "instance": "int",
    "start": "bigint",
    "sessionId": "int",
    "serviceId": "int",
    "agentId": "int",
    "interactionLegId": "int",
    "alertingTime": "int",
    "busyTime": "int",
    "wrapUpTime": "int",
    "waitTime": "int",
    "direction": "int",
    "mediaId": "int",
    "helpTime": "int",
    "agentReleased": "boolean",
    "mediaOutcome": "int",
    "finalSegment": "boolean",
    "agentSite": "int",
    "callSite": "int",
    "availableTime": "int",
    "availableTimeByService": "int",
    "held": "int",
    "help": "int",
}

ARROW_SCHEMA = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in COLUMNS.items()])

#: the same schema for Spark's readers
SPARK_SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
