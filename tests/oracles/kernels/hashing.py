"""The obvious versions of the kernels in `icestream.kernels.hashing`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.kernels.hashing import (
    _NULL_HI,
    _NULL_LO,
    _STRUCT_HI,
    _STRUCT_LO,
    NULL,
    VALUE,
    ByteArray,
    U64Array,
)


def plain_floats_reference(bits: U64Array, out: U64Array) -> None:
    """Do what `plain_floats` does, by float comparison."""
    values = bits.view(np.float64)
    plain = np.where(values == 0, 0.0, values)
    out[:] = np.where(np.isnan(values), np.float64(np.nan), plain).view(np.uint64)


def absorb_words_reference(
    words: npt.NDArray[Any], mask: ByteArray, hi: U64Array, lo: U64Array
) -> None:
    """Do what `absorb_words` does, one Python integer at a time."""
    _absorb_reference([[int(word)] for word in words], mask, hi, lo)


def absorb_floats_reference(bits: U64Array, mask: ByteArray, hi: U64Array, lo: U64Array) -> None:
    """Do what `absorb_floats` does, one Python integer at a time."""
    plain = np.empty_like(bits)
    plain_floats_reference(bits, plain)
    _absorb_reference([[int(word)] for word in plain], mask, hi, lo)


def absorb_bytes_reference(
    offsets: npt.NDArray[Any], data: ByteArray, mask: ByteArray, hi: U64Array, lo: U64Array
) -> None:
    """Do what `absorb_bytes` does, one Python integer at a time."""
    rows = []
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        text = data[begin:end].tobytes()
        words = [int.from_bytes(text[j : j + 8], "little") for j in range(0, len(text), 8)]
        rows.append([len(text), *words])
    _absorb_reference(rows, mask, hi, lo)


def absorb_marks_reference(mask: ByteArray, hi: U64Array, lo: U64Array) -> None:
    """Do what `absorb_marks` does, one Python integer at a time."""
    for i in range(hi.size):
        kind = int(mask[i]) if mask.size else VALUE
        if kind == VALUE:
            _absorb_symbol(i, int(_STRUCT_HI), int(_STRUCT_LO), hi, lo)
        elif kind == NULL:
            _absorb_symbol(i, int(_NULL_HI), int(_NULL_LO), hi, lo)


def _absorb_reference(rows: list[list[int]], mask: ByteArray, hi: U64Array, lo: U64Array) -> None:
    for i, words in enumerate(rows):
        kind = int(mask[i]) if mask.size else VALUE
        if kind == VALUE:
            for word in words:
                _absorb_symbol(i, word, word, hi, lo)
        elif kind == NULL:
            _absorb_symbol(i, int(_NULL_HI), int(_NULL_LO), hi, lo)


def _absorb_symbol(row: int, first: int, second: int, hi: U64Array, lo: U64Array) -> None:
    full = 2**64 - 1
    x, y = (int(hi[row]) ^ first) & full, (int(lo[row]) ^ second) & full
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & full
    x = (x ^ x >> 27) * 0x94D049BB133111EB & full
    y = (y ^ y >> 33) * 0xFF51AFD7ED558CCD & full
    y = (y ^ y >> 33) * 0xC4CEB9FE1A85EC53 & full
    hi[row], lo[row] = x ^ x >> 31, y ^ y >> 33
