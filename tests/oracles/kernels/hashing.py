"""The obvious versions of the kernels in `icestream.kernels.hashing`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.kernels.hashing import (
    _NULL_HIGH,
    _NULL_LOW,
    _STRUCT_HIGH,
    _STRUCT_LOW,
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
    words: npt.NDArray[Any], mask: ByteArray, id_high: U64Array, id_low: U64Array
) -> None:
    """Do what `absorb_words` does, one Python integer at a time."""
    _absorb_reference([[int(word)] for word in words], mask, id_high, id_low)


def absorb_floats_reference(
    bits: U64Array, mask: ByteArray, id_high: U64Array, id_low: U64Array
) -> None:
    """Do what `absorb_floats` does, one Python integer at a time."""
    plain = np.empty_like(bits)
    plain_floats_reference(bits, plain)
    _absorb_reference([[int(word)] for word in plain], mask, id_high, id_low)


def absorb_bytes_reference(
    offsets: npt.NDArray[Any], data: ByteArray, mask: ByteArray, id_high: U64Array, id_low: U64Array
) -> None:
    """Do what `absorb_bytes` does, one Python integer at a time."""
    rows = []
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        text = data[begin:end].tobytes()
        words = [int.from_bytes(text[j : j + 8], "little") for j in range(0, len(text), 8)]
        rows.append([len(text), *words])
    _absorb_reference(rows, mask, id_high, id_low)


def absorb_marks_reference(mask: ByteArray, id_high: U64Array, id_low: U64Array) -> None:
    """Do what `absorb_marks` does, one Python integer at a time."""
    for i in range(id_high.size):
        kind = int(mask[i]) if mask.size else VALUE
        if kind == VALUE:
            _absorb_symbol(i, int(_STRUCT_HIGH), int(_STRUCT_LOW), id_high, id_low)
        elif kind == NULL:
            _absorb_symbol(i, int(_NULL_HIGH), int(_NULL_LOW), id_high, id_low)


def _absorb_reference(
    rows: list[list[int]], mask: ByteArray, id_high: U64Array, id_low: U64Array
) -> None:
    for i, words in enumerate(rows):
        kind = int(mask[i]) if mask.size else VALUE
        if kind == VALUE:
            for word in words:
                _absorb_symbol(i, word, word, id_high, id_low)
        elif kind == NULL:
            _absorb_symbol(i, int(_NULL_HIGH), int(_NULL_LOW), id_high, id_low)


def _absorb_symbol(row: int, first: int, second: int, id_high: U64Array, id_low: U64Array) -> None:
    full = 2**64 - 1
    x, y = (int(id_high[row]) ^ first) & full, (int(id_low[row]) ^ second) & full
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & full
    x = (x ^ x >> 27) * 0x94D049BB133111EB & full
    y = (y ^ y >> 33) * 0xFF51AFD7ED558CCD & full
    y = (y ^ y >> 33) * 0xC4CEB9FE1A85EC53 & full
    id_high[row], id_low[row] = x ^ x >> 31, y ^ y >> 33
