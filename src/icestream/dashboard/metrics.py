"""The numbers of all queries for Prometheus, in its text format.

Idea: one table maps numbers of a progress report to metrics. Every query is a label, with the
numbers of its last version. Numbers that a query does not report are omitted.

Invariants:
1. Labels are quoted, whatever the name of a query is
   (`test_names_are_quoted`).
2. The dashboard file for Grafana and the alert rules use only metrics that exist
   (`test_grafana_asks_for_metrics_that_exist`, `test_alerts_ask_for_metrics_that_exist`).

References: the exposition format 0.0.4 of Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from icestream.dashboard.query_list import WatchedQuery

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Metric:
    """A number of the progress report, with its name in Prometheus."""

    name: str
    help: str
    #: its path in the progress report, to a number or to a list, which is counted
    path: tuple[str, ...]
    kind: str = "gauge"
    #: the label that tells the numbers below the path apart, with its value by their names there
    label: str = ""
    values: Mapping[str, str] | None = None
    #: what one of the unit in Prometheus is in the report
    unit: int = 1

    def samples(self, report: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], float]]:
        """Yield labels and numbers of a report; numbers that it does not have are left out."""
        found: Any = report
        for name in self.path:
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, list):
            found = len(found)
        if not self.label:
            values: Mapping[str, Any] = {"": found}
        else:
            values = found if isinstance(found, Mapping) else {}
        for name, value in values.items():
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            if self.values is None or name in self.values:
                shown = name if self.values is None else self.values[name]
                number = value / self.unit if self.unit != 1 else value
                yield ({self.label: shown} if self.label else {}), number


_OWN = ("icestream",)
_PARTS = {name: name for name in ("ingest", "shards", "commit", "cleaning", "repeated")}
_QUANTILES = {"averageMs": "average", "p50Ms": "0.5", "p99Ms": "0.99", "maxMs": "1"}
METRICS = (
    Metric("version", "Last committed version.", ("version",)),
    Metric("owner_epoch", "How often the checkpoint got an owner.", (*_OWN, "ownerEpoch")),
    Metric("input_rows", "Events of the last version.", ("numInputRows",)),
    Metric("input_rows_per_second", "Events per second of the last version.",
           ("processedRowsPerSecond",)),
    Metric("result_rows", "Result rows of the last version.", (*_OWN, "resultRows")),
    Metric("late_events_total", "Events that arrived too late.", (*_OWN, "lateEvents"), "counter"),
    Metric("bad_rows_total", "Rows that steps refused and that were stored.",
           (*_OWN, "badRows"), "counter"),
    Metric("events_without_time_total", "Events without a time, which were left out.",
           (*_OWN, "eventsWithoutTime"), "counter"),
    Metric("idle_sources", "Sources that do not hold the watermark, as they send nothing.",
           (*_OWN, "idleSources")),
    Metric("budget_bytes", "Memory budget of the query.", (*_OWN, "budgetBytes")),
    Metric("memory_bytes", "Memory of state, buffers and indexes.", (*_OWN, "stateMemoryBytes")),
    Metric("peak_memory_bytes", "Most memory during the last version.",
           (*_OWN, "peakMemoryBytes")),
    Metric("process_constant_bytes", "Memory of the processes before their first task.",
           (*_OWN, "processConstantBytes")),
    Metric("process_added_bytes", "Memory that the processes took since then.",
           (*_OWN, "processAddedBytes")),
    Metric("log_bytes", "Bytes of live segments of the log.", (*_OWN, "logBytes")),
    Metric("disk_bytes", "Bytes of log, exchange and caches on disk.", (*_OWN, "diskBytes")),
    Metric("disk_budget_bytes", "Disk budget of the query.", (*_OWN, "diskBudgetBytes")),
    Metric("log_to_estimate", "Bytes of the log by those that were expected.",
           (*_OWN, "logToEstimate")),
    Metric("log_segments", "Live segments of the log.", (*_OWN, "segments")),
    Metric("groups", "Groups in the state of the query.", (*_OWN, "groups")),
    Metric("cold_groups_left_total", "Groups evicted from memory.",
           (*_OWN, "coldState", "left"), "counter"),
    Metric("cold_groups_returned_total", "Groups that were read back.",
           (*_OWN, "coldState", "returned"), "counter"),
    Metric("cold_read_bytes_total", "Bytes read back from the log.",
           (*_OWN, "coldState", "bytes_read"), "counter"),
    Metric("join_spills_total", "Times that partitions of joins were spilled.",
           (*_OWN, "spills"), "counter"),
    Metric("waiting_keys", "Keys with a waiting update.", (*_OWN, "updates", "waiting")),
    Metric("served_keys", "Keys served in the last version.", (*_OWN, "updates", "served")),
    Metric("parallelism", "Tasks that run the shards.", (*_OWN, "parallelism")),
    Metric("shards", "Shards of each component.", (*_OWN, "shardsOfComponent")),
    Metric("shards_wanted", "Shards of each component after a change of their number.",
           (*_OWN, "shardsWanted")),
    Metric("moved_shards", "Shards that changed their task in the last version.",
           (*_OWN, "movedShards")),
    Metric("rebuilt_shards", "Shards rebuilt from the log in the last version.",
           (*_OWN, "rebuiltShards")),
    Metric("storage_requests", "Requests to the object store in the last version.",
           (*_OWN, "storageRequests"), label="by", values=_PARTS),
    Metric("phase_seconds", "Seconds of each phase of the last version.", ("durationMs",),
           label="phase", unit=1000),
    Metric("staleness_seconds", "Staleness of answers since the previous version, by quantile.",
           (*_OWN, "updates", "staleness"), label="quantile", values=_QUANTILES, unit=1000),
    Metric("queue_staleness_seconds",
           "Staleness of updates in the queue since the previous version, by quantile.",
           (*_OWN, "updates", "queueStaleness"), label="quantile", values=_QUANTILES, unit=1000),
)  # fmt: skip
STATES = ("running", "ended", "failed", "lost", "unknown")


def exposition(queries: Iterable[WatchedQuery]) -> str:
    """Return the metrics of all queries as the text that Prometheus scrapes."""
    watched = list(queries)
    lines: list[str] = []
    for metric in METRICS:
        samples = [
            (_labels(each, **labels), value)
            for each in watched
            for labels, value in metric.samples(each.last or {})
        ]
        _family(lines, metric.name, metric.help, metric.kind, samples)
    events = [(_labels(each), each.events) for each in watched]
    _family(lines, "events_total", "Events of all versions in the history.", "counter", events)
    states = [(_labels(q, state=each), float(q.state == each)) for q in watched for each in STATES]
    _family(lines, "query_state", "1 for the current state of a query.", "gauge", states)
    reached = [(_labels(each), at) for each in watched if (at := _watermark(each.last)) is not None]
    _family(lines, "watermark_seconds", "Watermark, in seconds since 1970.", "gauge", reached)
    return "".join(f"{line}\n" for line in lines)


def _family(
    lines: list[str], name: str, about: str, kind: str, samples: Sequence[tuple[str, float]]
) -> None:
    if samples:
        lines += [f"# HELP icestream_{name} {about}", f"# TYPE icestream_{name} {kind}"]
        lines += [f"icestream_{name}{labels} {value!r}" for labels, value in samples]


def _labels(query: WatchedQuery, **more: str) -> str:
    labels = {"query": query.name, "id": query.id, **more}
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items()) + "}"


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _watermark(report: Mapping[str, Any] | None) -> float | None:
    own = (report or {}).get("icestream")
    text = own.get("watermark") if isinstance(own, Mapping) else None
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except (ValueError, OverflowError):
        return None
