from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from icestream.dashboard import metrics
from icestream.dashboard.query_list import QueryList
from icestream.runtime.version.history import QueryHistory

SAMPLE = re.compile(
    r'^(icestream_\w+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} (-?[0-9.e+-]+)$'
)


def samples(text: str) -> list[tuple[str, str, float]]:
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.match(line)
            assert match, line
            found.append((match[1], match[2], float(match[3])))
    return found


def metric_names() -> set[str]:
    """Return the names of all metrics."""
    stale = ("staleness_seconds", "queue_staleness_seconds")
    more = ("events_total", "query_state", "storage_requests", "phase_seconds", *stale)
    return {f"icestream_{name}" for name in (*(m.name for m in metrics.METRICS), *more)} | {
        "icestream_watermark_seconds"
    }


def test_every_query_has_its_numbers(checkpoints: Path) -> None:
    text = metrics.exposition(QueryList([str(checkpoints)]).watched())
    found = samples(text)
    assert len([each for each in found if each[0] == "icestream_memory_bytes"]) == 4
    [running] = [
        value
        for name, labels, value in found
        if name == "icestream_query_state" and 'query="joins"' in labels and '"ended"' in labels
    ]
    assert running == 1.0
    assert {name for name, _, _ in found} == metric_names()


def test_each_metric_is_explained_once_and_above_its_samples(checkpoints: Path) -> None:
    text = metrics.exposition(QueryList([str(checkpoints)]).watched())
    types = re.findall(r"^# TYPE (\w+) (gauge|counter)$", text, re.MULTILINE)
    names = [name for name, _ in types]
    assert len(names) == len(set(names)) == len(metric_names())
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in types)
    for name in names:
        assert text.index(f"# TYPE {name} ") < text.index(f"\n{name}{{")


def test_names_are_quoted(tmp_path: Path) -> None:
    name = 'a "b" \\ c\nd'
    history = QueryHistory(str(tmp_path), {"name": name})
    history.start()
    history.progress({"version": 1, "icestream": {"watermark": "never", "logBytes": "x"}})
    text = metrics.exposition(QueryList([str(tmp_path)]).watched())
    assert 'query="a \\"b\\" \\\\ c\\nd"' in text
    assert [value for key, _, value in samples(text) if key == "icestream_version"] == [1.0]
    assert "icestream_log_bytes" not in text


def expressions(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["expr"]] if "expr" in value else []
        return own + [each for inner in value.values() for each in expressions(inner)]
    if isinstance(value, list):
        return [each for inner in value for each in expressions(inner)]
    return []


def test_alerts_ask_for_metrics_that_exist() -> None:
    text = resources.files("icestream.dashboard").joinpath("alerts.yaml").read_text()
    alerts, rules = re.findall(r"alert: (\w+)", text), re.findall(r"expr: (.*)", text)
    assert len(alerts) == len(set(alerts)) == len(rules)
    for rule in rules:
        asked = set(re.findall(r"icestream_\w+", rule))
        assert asked
        assert asked <= metric_names(), rule


def test_grafana_asks_for_metrics_that_exist() -> None:
    text = resources.files("icestream.dashboard").joinpath("grafana.json").read_text()
    board = json.loads(text)
    asked = {name for each in expressions(board) for name in re.findall(r"icestream_\w+", each)}
    assert asked
    assert asked <= metric_names()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
