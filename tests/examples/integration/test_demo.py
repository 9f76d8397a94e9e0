from __future__ import annotations

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from examples.integration.demo import demo, exact_rows
from icestream.core.errors import DefinitionError


@pytest.mark.spark
def test_oracle_the_demo_ends_with_the_exact_join(tmp_path: Path) -> None:
    output, home = io.StringIO(), tmp_path / "demo"
    code = demo(events=60_000, memory="4 MB", keep=home, console=Console(file=output, width=140))
    assert code == 0
    text = output.getvalue()
    assert f"{exact_rows(pq.read_table(home / 'events')):,} rows: the same" in text
    assert "cleaning up the joins" in text
    assert "late results   0," not in text


def test_arguments_that_make_no_demo_are_refused() -> None:
    with pytest.raises(DefinitionError, match="at least 1 row"):
        demo(events=0)
    with pytest.raises(DefinitionError, match="cannot read 'much' as a size"):
        demo(memory="much")
