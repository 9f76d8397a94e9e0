from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icestream.core.errors import InputError
from icestream.inspect.access.checkpoint import Checkpoint
from icestream.inspect.rewrite import rewrite
from icestream.inspect.state_rows import Reading
from icestream.inspect.verify import verify
from tests.fixtures.checkpoints import make, opened

KINDS = {"updates": "value", "update joins": "a"}


def waiting(root: str) -> pa.Table:
    reading = Reading(root, kept="waiting")
    return pa.Table.from_batches(list(reading.batches()), schema=reading.schema)


def values(root: str, column: str) -> dict[int, Any]:
    return {row["key"]: row[column] for row in waiting(root).to_pylist()}


def served(kind: str, folder: Path, column: str) -> dict[int, Any]:
    """Let a query serve all that waits; return the values by key."""
    query = opened(kind, str(folder))
    rows = query.flush().to_pylist()
    query.close()
    assert len(rows) == len({row["key"] for row in rows})
    return {row["key"]: row[column] for row in rows}


@pytest.mark.parametrize("kind", KINDS)
def test_oracle_rewritten_values_are_those_that_are_served(kind: str, tmp_path: Path) -> None:
    """One value is edited, one key is dropped, one is new, and one waits that had been served."""
    column = KINDS[kind]
    root = make(kind, str(tmp_path))
    before = waiting(root)
    rows = before.to_pylist()
    assert len(rows) > 3
    rows[0][column] = 1000
    gone = rows.pop(1)
    rows[1] |= {column: 2000, "__last_update": rows[1]["__last_update"] + 7}
    rows.append(rows[0] | {"key": 77, "__group": None, column: 3000})
    done = rewrite(Reading(root, kept="waiting"), pa.Table.from_pylist(rows, before.schema))
    assert (done.version, done.groups, done.rows) == (6, 4, 3)
    expected = {row["key"]: row[column] for row in rows}
    assert values(root, column) == expected
    assert gone["key"] not in expected
    assert verify(Checkpoint(root)).is_fine
    again = rewrite(Reading(root, kept="waiting"), waiting(root))
    assert (again.version, again.groups) == (6, 0)
    assert served(kind, tmp_path, column) == expected


def test_oracle_keys_that_no_row_names_go_on_waiting(tmp_path: Path) -> None:
    root = make("updates", str(tmp_path))
    before = values(root, "value")
    one = waiting(root).slice(0, 1).to_pylist()[0] | {"value": -1.0}
    table = pa.Table.from_pylist([one], waiting(root).schema)
    assert rewrite(Reading(root, kept="waiting"), table, others="keep").groups == 1
    expected = before | {one["key"]: -1.0}
    assert values(root, "value") == expected
    assert served("updates", tmp_path, "value") == expected


def test_an_edited_value_is_not_older_than_what_its_key_had(tmp_path: Path) -> None:
    root = make("updates", str(tmp_path))
    rows = waiting(root)
    first = rows.slice(0, 1).to_pylist()[0]
    older = first | {"value": 5.0, "__last_update": first["__last_update"] - 1}
    with pytest.raises(InputError, match="its key had a newer update"):
        rewrite(Reading(root, kept="waiting"), pa.Table.from_pylist([older], rows.schema))
    twice = pa.Table.from_pylist([first, first | {"value": 5.0}], rows.schema)
    with pytest.raises(InputError, match="two rows have the key"):
        rewrite(Reading(root, kept="waiting"), twice)
