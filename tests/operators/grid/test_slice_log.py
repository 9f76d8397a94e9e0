from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from icestream.operators.folding.fields import Layout
from icestream.operators.grid.slice_log import SLICE_BYTES, SliceLog
from icestream.operators.grid.slices import SLICE


@pytest.mark.parametrize("rows", [-1, 0, 2**40, 2**63 - 1])
def test_slices_that_claim_what_they_cannot_have_are_refused(rows: int) -> None:
    place: Any = None
    layout = Layout(())
    log = SliceLog(place, layout, 1 << 20)
    most = SLICE_BYTES // (8 * layout.entry_width)
    sound = np.array([(0, 7, 1, 0, 9), (1, 8, most, 0, 9)], dtype=SLICE)
    assert log.known(sound) is sound
    with pytest.raises(ValueError, match="must have 1 to"):
        log.known(np.array([(0, 7, rows, 0, 9)], dtype=SLICE))
