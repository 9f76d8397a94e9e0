from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from icestream.operators.folding.fields import Layout
from icestream.operators.grid.slice_log import MOST_SLICE_BYTES, SliceLog
from icestream.operators.grid.slices import SLICE
from icestream.state.log.format import Record


@pytest.mark.parametrize("rows", [-1, 0, 2**40, 2**63 - 1])
def test_slices_that_claim_what_they_cannot_have_are_refused(rows: int) -> None:
    place: Any = None
    layout = Layout(())
    log = SliceLog(place, layout, 1 << 20)
    most = MOST_SLICE_BYTES // (8 * layout.entry_width)
    sound = np.array([(0, 7, 1, 0, 9), (1, 8, most, 0, 9)], dtype=SLICE)
    assert log.known(sound) is sound
    with pytest.raises(ValueError, match="must have 1 to"):
        log.known(np.array([(0, 7, rows, 0, 9)], dtype=SLICE))


def test_a_record_that_claims_other_entries_than_it_has_is_refused() -> None:
    place: Any = None
    layout = Layout(())
    log = SliceLog(place, layout, 1 << 20)
    payload = memoryview(np.ones((3, layout.entry_width), dtype=np.int64).tobytes())
    assert log.described(Record(7, 0, 0, 5, 9, 0, 3, payload)) == (5, 7, 3, 1, 1)
    with pytest.raises(ValueError, match="a slice of 16777221 entries has 3"):
        log.described(Record(7, 0, 0, 5, 9, 0, 16777221, payload))
