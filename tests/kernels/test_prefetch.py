from __future__ import annotations

import numpy as np
import numpy.typing as npt

from icestream.kernels.compile import kernel
from icestream.kernels.prefetch import prefetch, prefetch_word


@kernel
def total(table: npt.NDArray[np.int64], words: npt.NDArray[np.int64]) -> int:
    """Add up all words, after the processor was asked for each of them."""
    for row in range(len(table)):
        prefetch(table, row, 0)
        prefetch_word(words, row)
    found = 0
    for row in range(len(table)):
        found += table[row, 0] + words[row]
    return found


def test_asking_for_a_row_changes_nothing() -> None:
    table = np.arange(12, dtype=np.int64).reshape(4, 3)
    words = np.arange(4, dtype=np.int64)
    assert total(table, words) == 0 + 3 + 6 + 9 + 0 + 1 + 2 + 3
    assert (table == np.arange(12).reshape(4, 3)).all()
