from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.fixtures.object_store import ObjectStoreServer


ROOT = Path(__file__).resolve().parents[1]
#: sizes of samples of tests that the package offers to authors of operators
SAMPLES = {
    "EveryQuery.test_crash_restores_from_snapshots": 9,
    "EveryQuery.test_oracle_rescaling_at_any_batch_changes_no_row": 9,
    "EveryQuery.test_crash_between_any_two_batches": 9,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=50, help="SIGKILLs of each query on Spark")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow the cases of a test that are beyond its sample, and benches and examples.

    A test of a suite that many classes inherit is sampled among all of them.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.nodeid.startswith(("tests/bench/", "tests/examples/")):
            item.add_marker("slow")
        size = SAMPLES.get(getattr(getattr(item, "function", None), "__qualname__", ""))
        if size is not None:
            item.add_marker(pytest.mark.sample(size))
        if item.get_closest_marker("sample"):
            cases.setdefault(sampled_among(item), []).append(item)
    for each in cases.values():
        (size,) = each[0].get_closest_marker("sample").args  # type: ignore[union-attr]
        for item in beyond_sample(each, size):
            item.add_marker("slow")


def beyond_sample(cases: list[pytest.Item], size: int) -> list[pytest.Item]:
    """Return the cases that are not in the sample, which has many different parameters."""
    left, seen = list(cases), set[tuple[str, str]]()
    for _ in range(min(size, len(left))):
        chosen = max(left, key=lambda case: len(parameters(case) - seen))
        seen |= parameters(chosen)
        left.remove(chosen)
    return left


def sampled_among(item: pytest.Item) -> str:
    """Return the name of what a sample is taken of: a test, or a test that classes inherit."""
    assert isinstance(item, pytest.Function)
    if item.cls is not None and item.function.__module__ != item.module.__name__:
        return str(item.function.__qualname__)
    return item.nodeid.partition("[")[0]


def parameters(case: pytest.Item) -> set[tuple[str, str]]:
    """Return the names and values of a case's parameters, and its class."""
    assert isinstance(case, pytest.Function)
    found = case.callspec.params.items() if hasattr(case, "callspec") else ()
    return {(name, repr(value)) for name, value in found} | {("class", repr(case.cls))}


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Let versions wait for new shards, so that these take over when tests expect it."""
    from icestream.runtime.version import resharding

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(resharding, "PATIENCE", 60.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def state_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what queries note for `icestream ui` out of the home of who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    import icestream as ice

    os.environ["PYSPARK_PYTHON"] = sys.executable
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = ice.local_session(
        "tests", cores=2, memory="1g", conf={"spark.sql.warehouse.dir": str(warehouse)}
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStoreServer]:
    from tests.fixtures.object_store import ObjectStoreServer

    server = ObjectStoreServer()
    yield server
    server.close()
