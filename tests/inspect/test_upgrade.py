"""Checkpoints of each format, as the releases that wrote them left them.

A golden checkpoint has six of the ten actions of a script. The release that reads or converts it
must deliver the last version again and go on exactly as a run that never stopped.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from icestream.core.errors import CheckpointError
from icestream.inspect import upgrade as upgrading
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.upgrade import OLDER, upgrade_checkpoint
from icestream.inspect.verify import verify
from icestream.plan.computation import Computation
from icestream.plan.nodes.queries import Plan
from icestream.runtime.local import LocalQuery
from icestream.state.files import LocalFiles, replace_file
from icestream.state.versions.sealed import FORMAT, READ, opened, seal
from tests.inspect.test_copying import digest
from tests.suites.crash_runs import Script

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"


class WholeNumbers(Script):
    """A script without sums of doubles, which older formats stored differently."""

    @cached_property
    def plan(self) -> Computation:
        whole = Script(batches=self.batches).plan
        assert isinstance(whole, Plan)
        (view,) = whole.views
        chosen = (
            replace(each, column="x1") if each.function == "sum" else each
            for each in view.aggregates
        )
        return replace(whole, views=(replace(view, aggregates=tuple(chosen)),))


SCRIPT = WholeNumbers(batches=8)
#: actions that the golden checkpoints have
DONE = 6


def golden(number: int, folder: Path) -> Path:
    with tarfile.open(GOLDEN / f"format-{number}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def query_at(folder: Path) -> LocalQuery:
    settings = replace(SCRIPT.settings(f"{folder}-local"), root=f"{folder}/icestream")
    return LocalQuery(SCRIPT.plan, settings)


def act(query: LocalQuery, action: int) -> list[str]:
    number = SCRIPT.actions[action]
    driver = query.driver
    made = driver.flush() if number is None else driver.batch(number, SCRIPT.inputs[number])
    return sorted(map(repr, query.rows(made).to_pylist()))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    query = query_at(tmp_path_factory.mktemp("fresh"))
    return [act(query, action) for action in range(len(SCRIPT.actions))]


@pytest.mark.parametrize("number", [*OLDER, *READ])
def test_oracle_a_golden_checkpoint_goes_on(
    number: int, tmp_path: Path, expected: list[list[str]]
) -> None:
    folder = golden(number, tmp_path)
    if number not in READ:
        with pytest.raises(CheckpointError, match="icestream state upgrade"):
            query_at(folder)
        assert upgrade_checkpoint(str(folder)).before == number
    assert upgrade_checkpoint(str(folder)).files == 0
    assert verify(Checkpoint(str(folder))).is_fine
    query = query_at(folder)
    again = query.rows(query.driver.last_again())
    assert sorted(map(repr, again.to_pylist())) == expected[DONE - 1]
    for action in range(DONE, len(SCRIPT.actions)):
        assert act(query, action) == expected[action]


def test_there_is_a_golden_checkpoint_of_each_format() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {
        f"format-{number}.tar.gz" for number in (*OLDER, *READ)
    }


def resealed(path: Path, change: Callable[[dict[str, Any]], None], number: int) -> None:
    value = opened(str(path), path.read_bytes(), (*OLDER, FORMAT))
    change(value)
    body = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    path.write_bytes(body + b"\n" + seal(number, body))


def with_first(plan: dict[str, Any]) -> None:
    plan["plan"]["views"][0]["aggregates"].append("first(x0) as f")


def with_doubles(plan: dict[str, Any]) -> None:
    plan["plan"]["views"][0]["aggregates"].append("avg(x0) as mean")


def with_session(plan: dict[str, Any]) -> None:
    plan["plan"]["views"][0]["kind"] = "session"


def without_views(plan: dict[str, Any]) -> None:
    del plan["plan"]["views"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_first, r"the state of first\(x0\) as f has changed"),
        (with_doubles, r"the state of avg\(x0\) as mean has changed"),
        (with_session, "the state of session has changed"),
        (without_views, "only the state of windows"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_unchanged(
    change: Callable[[dict[str, Any]], None], reason: str, tmp_path: Path
) -> None:
    folder = golden(2, tmp_path)
    resealed(folder / "icestream" / "plan.json", change, 2)
    before = digest(folder)
    with pytest.raises(CheckpointError, match=reason):
        upgrade_checkpoint(str(folder))
    assert digest(folder) == before


def test_events_on_the_log_are_not_converted(tmp_path: Path) -> None:
    folder = golden(2, tmp_path)

    def with_events(commit: dict[str, Any]) -> None:
        commit["decisions"]["store"] = "tuples"

    resealed(folder / "icestream" / "commits" / "000000000006.json", with_events, 2)
    with pytest.raises(CheckpointError, match="order of arrival"):
        upgrade_checkpoint(str(folder))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = golden(FORMAT, tmp_path)
    resealed(folder / "icestream" / "plan.json", lambda _: None, FORMAT + 1)
    for attempt in (query_at, lambda each: upgrade_checkpoint(str(each))):
        with pytest.raises(CheckpointError, match="install the newer Icestream"):
            attempt(folder)


def test_crash_a_conversion_can_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: list[list[str]]
) -> None:
    replaced = replace_file
    for step in range(7):
        folder = golden(2, tmp_path / str(step))
        taken: list[str] = []

        def dying(files: LocalFiles, path: str, data: bytes) -> None:
            if len(taken) == step:  # noqa: B023 - called inside the loop
                msg = "killed"
                raise OSError(msg)
            taken.append(path)  # noqa: B023
            replaced(files, path, data)

        monkeypatch.setattr(upgrading, "replace_file", dying)
        with pytest.raises(OSError, match="killed"):
            upgrade_checkpoint(str(folder))
        monkeypatch.undo()
        with pytest.raises(CheckpointError):
            query_at(folder)
        upgrade_checkpoint(str(folder))
        assert act(query_at(folder), DONE) == expected[DONE]
