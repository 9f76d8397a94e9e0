from __future__ import annotations

import stat
from importlib import metadata
from pathlib import Path

import pytest

from icestream import doctor
from icestream.doctor import Health

OPENJDK_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)'


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        (OPENJDK_17, 17),
        ('openjdk version "25.0.3" 2026-04-21 LTS', 25),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("The operation couldn't be completed", None),
    ],
)
def test_java_versions_are_read_as_java_prints_them(printed: str, version: int | None) -> None:
    assert doctor.java_version(printed) == version


def put_java(home: Path, script: str) -> None:
    """Put a java that runs `script` into `home`."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("script", "health"),
    [
        ("echo 'openjdk version \"17.0.1\"' >&2", Health.FINE),
        ("echo 'openjdk version \"11.0.1\"' >&2", Health.FAILURE),
        ("echo 'no words' >&2", Health.FAILURE),
        ("exit 3", Health.FAILURE),
    ],
)
def test_the_java_of_java_home_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, health: Health
) -> None:
    put_java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert doctor.check_java().health is health


def test_no_java_at_all_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = doctor.check_java()
    assert finding.health is Health.FAILURE
    assert "openjdk-17-jre-headless" in finding.advice


@pytest.mark.parametrize(("found", "health"), [("4.0.1", "failure"), ("4.1.0.dev1", "fine")])
def test_spark_older_than_4_1_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, found: str, health: str
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: found)
    assert doctor.check_spark().health == health


def test_an_old_python_is_a_failure() -> None:
    assert doctor.check_python((3, 10, 2)).health is Health.FAILURE
    assert doctor.check_python((3, 11, 0)).health is Health.FINE


def test_the_limit_of_a_container_counts_as_the_memory(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    finding = doctor.check_memory(limit)
    assert finding.health is Health.WARNING
    assert finding.values["total"] == 1048576


@pytest.mark.parametrize("text", ["max\n", None])
def test_no_limit_leaves_the_memory_of_the_machine(tmp_path: Path, text: str | None) -> None:
    limit = tmp_path / "memory.max"
    if text is not None:
        limit.write_text(text)
    assert int(doctor.check_memory(limit).values["total"]) > 1048576


def test_a_full_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "LEAST_DISK", 1 << 62)
    assert doctor.check_space(tmp_path).health is Health.WARNING


def test_a_file_system_in_memory_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "_file_system", lambda _: "tmpfs")
    monkeypatch.setattr(doctor, "LEAST_DISK", 0)
    assert "memory" in doctor.check_space(tmp_path).advice


def test_measuring_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("stays")
    finding = doctor.measure_disk(tmp_path, size=3_000_000, syncs=2)
    assert finding.health in (Health.FINE, Health.WARNING)
    assert int(finding.values["bytes per second"]) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    finding = doctor.measure_disk(tmp_path / "missing", size=4096, syncs=1)
    assert finding.health is Health.FAILURE
    assert "write access" in finding.advice


def test_every_finding_that_is_not_fine_has_advice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "LEAST_DISK", 1 << 62)
    monkeypatch.setattr(doctor, "LEAST_MEMORY", 1 << 62)
    monkeypatch.setattr(doctor, "SLOW_SYNC", 0.0)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    findings = doctor.examine(tmp_path)
    assert sum(finding.health is not Health.FINE for finding in findings) >= 4
    assert all(finding.advice for finding in findings if finding.health is not Health.FINE)
    assert not any(finding.advice for finding in findings if finding.health is Health.FINE)
