"""Words at an address, beside slices."""

from __future__ import annotations

import numpy as np

from icestream.kernels.groups.chains import PIECE, copy_back
from tests.oracles.kernels.addresses import words_at_reference


def test_parity_words_at_an_address() -> None:
    memory = np.arange(100, 120)
    for first, count in ((0, 20), (3, 5), (7, 0)):
        address = memory.ctypes.data + 8 * first
        out = np.empty(count, dtype=np.int64)
        copy_back(np.array([[0, address, count]]).reshape(1, PIECE), out, np.zeros(1, np.int64))
        assert out.tolist() == words_at_reference(memory, address, count).tolist()
