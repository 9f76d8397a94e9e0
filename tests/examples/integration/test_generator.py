from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.integration.generator import PRICE, VOLUME, Desk
from icestream.core.errors import DefinitionError


def test_oracle_rows_do_not_depend_on_the_pieces() -> None:
    desk = Desk(seed=3)
    pieces = [desk.table(first, 70) for first in range(0, 1400, 70)]
    assert pa.concat_tables(pieces).equals(desk.table(0, 1400))
    assert not desk.table(0, 1400).equals(Desk(seed=4).table(0, 1400))


def test_prices_and_volumes_come_in_pairs() -> None:
    rows = Desk().table(0, 401 * 3)
    of = {kind: rows.filter(pc.equal(rows.column("kind"), kind)) for kind in (PRICE, VOLUME)}
    assert of[PRICE].column("number").to_pylist() == of[VOLUME].column("number").to_pylist()
    assert of[PRICE].column("symbol").equals(of[VOLUME].column("symbol"))


def test_a_stream_without_rows_is_refused() -> None:
    with pytest.raises(DefinitionError, match="at least 1 row"):
        Desk(rate=0)
