from __future__ import annotations

import pyarrow as pa
import pytest

from icestream.core.errors import BudgetError, DamageError
from icestream.state.validation import validated


@pytest.mark.parametrize(
    "error",
    [IndexError("at"), ValueError("of"), EOFError("end"), pa.ArrowInvalid("no"), OSError("told")],
)
def test_what_stumbles_over_records_blames_the_file(error: Exception) -> None:
    with (
        pytest.raises(DamageError, match="have valid checksums but invalid content") as blamed,
        validated("commit 7"),
    ):
        raise error
    assert blamed.value.path == "commit 7"
    assert blamed.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [BudgetError("full"), OSError(28, "no space"), MemoryError(), pa.ArrowMemoryError()]
)
def test_what_is_not_the_fault_of_records_passes(error: Exception) -> None:
    with pytest.raises(type(error)) as passed, validated("commit 7"):
        raise error
    assert passed.value is error
