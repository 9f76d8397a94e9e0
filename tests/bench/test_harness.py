from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench import agreement, command, registry, rows, systems
from bench.agreement import WindowTotals
from bench.harness import BenchReport, Silent, describe_commit, describe_machine, run
from bench.peer_environments import Peer, python_of
from bench.processes import ProcessFailed, results
from bench.registry import Bar, Bench, Measurement, ProgressLog, Size
from bench.steady import steady_rate
from bench.windows import overlap
from icestream.core.errors import DefinitionError, StorageError

MEASURED = Measurement(
    {"10 keys": {"eps": 12.5, "peer_eps": None}, "flatness": 0.9, "agree": ["a", "b"]},
    (Bar.at_least("flatness", 0.8, 0.9),),
    {"peer": "1.0"},
)


def bench(measurement: Measurement = MEASURED) -> Bench:
    def measure(size: Size, progress: ProgressLog) -> Measurement:
        progress.plan(1)
        progress.step(f"measuring {size}")
        progress.note("done")
        return measurement

    return Bench("keys", "keys cost nothing", measure)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "benches", lambda: [bench()])
    monkeypatch.setattr(command, "benches", lambda: [bench()])


# registry


def test_a_bar_without_a_measurement_does_not_hold() -> None:
    assert not Bar.at_least("ratio", 3, None).holds
    assert not Bar.at_most("seconds", 3, None).holds


@pytest.mark.parametrize(("measured", "holds"), [(2.9, False), (3.0, True), (3.1, True)])
def test_a_bar_holds_from_its_wanted_value_on(measured: float, holds: bool) -> None:
    assert Bar.at_least("ratio", 3, measured) == Bar("ratio", ">= 3", measured, holds)


def test_every_listed_bench_states_its_claim_in_one_line() -> None:
    for one in registry.benches():
        assert one.claim
        assert "\n" not in one.claim
        assert registry.find(one.name) is one


def test_an_unknown_bench_is_answered_with_the_known_ones() -> None:
    with pytest.raises(DefinitionError, match="windows"):
        registry.find("widnows")


def test_listing_the_benches_imports_no_spark() -> None:
    look = (
        "import sys; from bench.registry import benches; benches(); "
        "sys.exit('pyspark' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", look], check=False).returncode == 0


# harness


def test_a_report_reads_back_as_it_was_written() -> None:
    report = run(bench(), Size.SMALL, Silent())
    assert BenchReport.from_json(report.to_json()) == report
    assert report.machine["peer"] == "1.0"
    written = json.loads(report.to_json())
    assert {"bench", "machine", "commit", "date", "figures", "bars"} <= written.keys()
    assert written["bars"] == [
        {"name": "flatness", "wanted": ">= 0.8", "measured": 0.9, "holds": True}
    ]


def test_the_machine_is_described(tmp_path: Path) -> None:
    machine = describe_machine(tmp_path)
    assert {"cpu", "cores", "memory", "disk", "python", "java", "spark"} <= machine.keys()


def git(folder: Path, *arguments: str) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *author, *arguments], check=True, capture_output=True)


def test_a_commit_with_local_changes_says_so(tmp_path: Path) -> None:
    assert describe_commit(tmp_path / "nowhere") == "unknown"
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "one")
    clean = describe_commit(tmp_path)
    assert len(clean) == 12
    (tmp_path / "file").write_text("two")
    assert describe_commit(tmp_path) == f"{clean}+"


# command


@pytest.mark.usefixtures("listed")
def test_the_list_names_each_bench_with_its_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.bench_command(None, "small", None, True) == 0
    assert capsys.readouterr().out.split() == ["keys", "keys", "cost", "nothing"]


@pytest.mark.usefixtures("listed")
def test_the_json_file_holds_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "keys.json"
    assert command.bench_command("keys", "small", target, False) == 0
    report = BenchReport.from_json(target.read_text())
    assert report.figures == MEASURED.figures
    assert report.bars == MEASURED.bars
    shown = capsys.readouterr().out
    for text in ("12.5", "flatness", ">= 0.8", "yes", "a, b"):
        assert text in shown


@pytest.mark.parametrize(("measured", "code"), [(0.9, command.HELD), (0.7, command.MISSED)])
def test_the_exit_code_reports_whether_every_bar_holds(
    measured: float, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurement = Measurement({}, (Bar.at_least("flatness", 0.8, measured),))
    monkeypatch.setattr(registry, "benches", lambda: [bench(measurement)])
    assert command.bench_command("keys", "full", None, False) == code


def test_some_cases_of_a_bench_are_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def narrowed(only: Sequence[str]) -> Bench:
        asked.append(only)
        return bench(MEASURED)

    monkeypatch.setattr(registry, "benches", lambda: [replace(bench(MEASURED), narrowed=narrowed)])
    assert command.bench_command("keys", "small", None, False, "a,b") == 0
    assert asked == [["a", "b"]]


@pytest.mark.usefixtures("listed")
def test_a_bench_without_names_for_its_cases_takes_no_only() -> None:
    with pytest.raises(DefinitionError, match="leave out --only"):
        command.bench_command("keys", "small", None, False, "a,b")


def test_nexmark_names_the_statements_it_has() -> None:
    with pytest.raises(DefinitionError, match=r"unknown statements q23: choose some of q0, q1"):
        command.bench_command("nexmark", "small", None, False, "q5,q23")


@pytest.mark.usefixtures("listed")
def test_an_unknown_size_is_answered_with_the_known_ones() -> None:
    with pytest.raises(DefinitionError, match="small, full"):
        command.bench_command("keys", "huge", None, False)


# processes


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_only_json_lines_are_results() -> None:
    said = "import sys; print('log'); print('{broken'); print(sys.argv[1])"
    assert results(script(said), {"eps": 1}, limit=30) == [{"eps": 1}]


def test_a_result_has_the_peak_memory_of_its_process() -> None:
    said = """if True:
        import time
        held = b"x" * (80 << 20)
        time.sleep(1.2)
        del held
        print('{"eps": 1}', flush=True)
        time.sleep(0.3)
        print('{"eps": 2}', flush=True)
    """
    one, other = results(script(said), {}, limit=30, memory=True)
    assert one["process_bytes"] > 80 << 20 > other["process_bytes"] > 0


def test_a_failed_process_shows_its_log() -> None:
    with pytest.raises(ProcessFailed, match="no such thing"):
        results(script("import sys; sys.exit('no such thing')"), {}, limit=30)


def test_a_process_past_its_time_is_stopped_with_what_it_said() -> None:
    said = "import time; print('{\"eps\": 1}', flush=True); time.sleep(60)"
    before = time.monotonic()
    assert results(script(said), {}, limit=1) == [{"eps": 1}]
    assert time.monotonic() - before < 30


def test_a_run_past_its_own_time_is_left_out_and_the_others_run() -> None:
    said = (
        "import json, sys, time\n"
        "for run in json.loads(sys.argv[1])['runs']:\n"
        "    time.sleep(60 * (run['name'] == 'slow'))\n"
        "    print(json.dumps({'name': run['name']}), flush=True)"
    )
    plan = {"runs": [{"name": name} for name in ("first", "slow", "last")]}
    found = systems.watched(script(said), plan, "system", Silent(), limit=5)
    assert [each["name"] for each in found] == ["first", "last"]


# peers


def fake_environment(root: Path, answer: int) -> None:
    python = root / ".peers" / "peer" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nexit {answer}\n")
    python.chmod(0o755)


def test_a_ready_environment_is_used_as_it_is(tmp_path: Path) -> None:
    fake_environment(tmp_path, 0)
    peer = Peer("peer", "no-such-package", "peer")
    assert python_of(peer, tmp_path, Silent()) == tmp_path / ".peers" / "peer" / "bin" / "python"


def test_a_failed_installation_leaves_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*command: str) -> None:
        raise subprocess.CalledProcessError(1, command, output="no such package")

    monkeypatch.setattr("bench.peer_environments._call", refuse)
    fake_environment(tmp_path, 1)
    with pytest.raises(StorageError, match="no such package"):
        python_of(Peer("peer", "no-such-package", "peer"), tmp_path, Silent())
    assert not (tmp_path / ".peers" / "peer").exists()


# steady rate


def progress(*batches: tuple[int, int, int]) -> list[dict[str, object]]:
    return [
        {"batchId": batch, "numInputRows": count, "durationMs": {"triggerExecution": spent}}
        for batch, count, spent in batches
    ]


def test_skipped_and_empty_batches_do_not_count() -> None:
    reports = progress((0, 10, 9_000), (1, 10, 1_000), (2, 10, 3_000), (3, 0, 5_000))
    assert steady_rate(reports, 1) == 5.0


def test_too_few_batches_give_no_rate() -> None:
    assert steady_rate(progress((0, 10, 9_000), (1, 0, 10)), 1) is None


# rows


def test_rows_do_not_depend_on_the_cut(tmp_path: Path) -> None:
    cuts: Sequence[tuple[int, int]] = [(2, 600), (3, 400)]
    tables = []
    for files, size in cuts:
        folder = rows.write_files(tmp_path, files, size)
        tables.append(pa.concat_tables(map(pq.read_table, sorted(folder.iterdir()))))
    assert tables[0].equals(tables[1])
    assert tables[0].equals(rows.table(0, 1_200))


def test_disorder_is_bounded() -> None:
    ts, _, _ = rows.columns(5_000_000, 100_000)
    due = rows.START + np.arange(5_000_000, 5_100_000) * rows.TICK
    late = due - ts
    assert late.min() >= 0
    assert rows.DISORDER * 9 // 10 < late.max() < rows.DISORDER


@pytest.mark.parametrize("first", [0, 10_000_000, 300_000_000])
def test_keys_are_spread_evenly(first: int) -> None:
    _, key, _ = rows.columns(first, 100_000)
    share = np.bincount(key, minlength=rows.KEYS)
    assert share.size == rows.KEYS
    assert 800 < share.min() <= share.max() < 1_200


# agreement


@pytest.mark.parametrize("shape", [rows.SPARSE, rows.StreamShape(keys=7, per_tick=2)])
def test_oracle_expected_totals_follow_the_definition(shape: rows.StreamShape) -> None:
    # range 60 s, slide 10 s: a window ends every 10 s and holds the events of the 60 s before
    #   |--pane--|--pane--|--pane--|--pane--|--pane--|--pane--|
    #   [------------------------ window ---------------------)
    until = agreement.closed_by(100_000, 10_000, 5_000, shape)
    ts, key, value = rows.columns(0, 100_000, shape)
    found = []
    first_end = (rows.START - rows.DISORDER) // 10_000 * 10_000 + 10_000
    for end in range(first_end, until + 1, 10_000):
        for one in range(shape.keys):
            part = value[(ts >= end - 60_000) & (ts < end) & (key == one)]
            if part.size:
                found.append((part.size, part.sum(), part.mean(), part.min(), part.max()))
    sums = (sum(map(float, column)) for column in zip(*found, strict=True))
    plain = WindowTotals(len(found), *sums)  # type: ignore[arg-type]
    assert agreement.expected(60_000, 10_000, until, shape).agrees_with(plain)


def test_averages_agree_up_to_rounding() -> None:
    one = WindowTotals(1, 2, 3.0, 1.5, 1.0, 2.0)
    assert one.agrees_with(WindowTotals(1, 2, 3.0, 1.5 + 1e-12, 1.0, 2.0))
    assert not one.agrees_with(WindowTotals(1, 2, 3.0, 1.6, 1.0, 2.0))
    assert not one.agrees_with(WindowTotals(1, 2, 3.0 + 1e-12, 1.5, 1.0, 2.0))


def test_totals_of_result_files_leave_out_windows_that_end_later(tmp_path: Path) -> None:
    ends = pa.array([1_000_000, 2_000_000, 3_000_000], pa.timestamp("us", tz="UTC"))
    window = pa.StructArray.from_arrays([ends, ends], ["start", "end"])
    numbers = {name: [1.0, 2.0, 4.0] for name in ("s", "a", "lo", "hi")}
    results_table = pa.table({"window": window, "key": [1, 1, 1], "n": [1, 2, 4], **numbers})
    pq.write_table(results_table, tmp_path / "part.parquet")
    assert agreement.of_parquet(tmp_path, 2_000) == WindowTotals(2, 3, 3.0, 3.0, 3.0, 3.0)


# windows


def test_the_faster_variant_of_a_peer_is_the_one_compared() -> None:
    name = overlap.HOUR.name
    flink = {
        f"{name}|heap|plain": 2.0,
        f"{name}|heap|mini-batch": 4.0,
        f"{name}|rocksdb|plain": 1.0,
    }
    figures = overlap.summarise({name: 12.0}, {name: 0.05}, {name: 0.5}, flink)
    assert figures[name] == {
        "icestream_eps": 12.0,
        "spark_eps": 0.05,
        "spark_chained_eps": 0.5,
        "flink_eps": 4.0,
        "flink_heap_eps": 4.0,
        "flink_rocksdb_eps": 1.0,
        "ratio_spark": pytest.approx(240),
        "ratio_spark_chained": 24.0,
        "ratio_flink": 3.0,
    }


def test_a_stalled_measurement_is_called_unsteady() -> None:
    assert systems.unsteady([900.0, 0.0, 0.0, 0.0])
    assert systems.unsteady([0.0, 0.0, 0.0, 1.0])
    assert not systems.unsteady([900.0, 1_000.0, 800.0, 1_100.0])


def test_what_was_not_measured_fails_its_bars() -> None:
    figures = overlap.summarise({}, {}, {}, {}) | {"systems_that_agree": []}
    assert not any(bar.holds for bar in overlap.judge(figures))


def test_a_figure_is_drawn_also_where_a_peer_has_no_rate(tmp_path: Path) -> None:
    ours = {case.name: 1e6 for case in overlap.CASES}
    figures = overlap.summarise(
        ours, {overlap.HOUR.name: 5e3}, {}, {f"{overlap.HOUR.name}|heap|plain": 1e5}
    )
    overlap.plot(figures, tmp_path / "figures" / "windows.png")
    assert (tmp_path / "figures" / "windows.png").stat().st_size > 0
