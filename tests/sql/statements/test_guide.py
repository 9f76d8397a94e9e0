"""The examples of the guide are read, and refused, as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from icestream.core.errors import DefinitionError
from icestream.sql.statements.aggregates import NAMES, SIGNATURES
from tests.fixtures.cql_statements import NameScope, describe, relations_of

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "cql.md").read_text()
SCOPE = NameScope(
    {
        "Stock": ["Time", "Symbol", "Price", "Volume"],
        "calls": ["timestamp", "serviceId", "busyTime", "agent"],
        "questions": ["at", "agent", "question"],
        "s": ["ts", "k"],
    }
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def test_the_statements_are_read() -> None:
    inside = [text for code in blocks("python") for text in re.findall('"""(.*?)"""', code, re.S)]
    for text in (*blocks("sql"), *inside):
        assert len(relations_of(text, SCOPE)) == 1


def test_the_windows_are_read() -> None:
    windows = re.findall(r"`\[((?:RANGE|TUMBLE|ROWS|PARTITION|CUMULATE|SESSION).*?)\]`", GUIDE)
    windows = [each for each in windows if "..." not in each]
    assert len(windows) == 13
    for window in windows:
        grouping = "GROUP BY k" if "PARTITION" in window else ""
        describe(f"SELECT count(*) FROM s [{window}] {grouping}", SCOPE)


def test_the_error_is_the_one_shown() -> None:
    with pytest.raises(DefinitionError) as refused:
        describe("\nSELECT Symbol, AVG(prise)\nFROM Stock [RANGE 1 HOUR]\nGROUP BY Symbol", SCOPE)
    assert str(refused.value) == blocks("text")[0].rstrip("\n")


def test_every_aggregate_is_named() -> None:
    table = GUIDE[GUIDE.index("| aggregates |") : GUIDE.index("All other functions")]
    named = set(re.findall(r"[a-z_]+", table)) | {"argmin", "argmax"}
    assert {*SIGNATURES} <= named
    assert named & NAMES == NAMES - {"grouping", "grouping_id"}
