"""The obvious versions of the kernels in `icestream.kernels.field_words`."""

from __future__ import annotations

from typing import Any

from icestream.core.arrays import Ints, Table
from icestream.kernels.field_words import ADD_FIXED, ADD_I64, ADD_I128, MAX, MIN, WORDS


def combine_sorted_reference(
    panes: Ints, rows: Table, ops: Ints, places: Ints
) -> list[tuple[int, list[Any]]]:
    """Do what sorting and `combine_sorted` do, with Python numbers: (pane, merged row), sorted."""
    merged: dict[tuple[int, int, int], list[int]] = {}
    for pane, row in zip(panes.tolist(), rows, strict=True):
        key = (pane, int(row[0]) % 2**64, int(row[1]) % 2**64)
        if key not in merged:
            merged[key] = row.tolist()
            continue
        words = merged[key]
        for op, place in zip(ops.tolist(), places.tolist(), strict=True):
            merge_words_reference(words, row.tolist(), place, op)
    return [(key[0], merged[key]) for key in sorted(merged)]


def merge_words_reference(target: list[int], source: list[int], place: int, op: int) -> None:
    """Merge one field with Python's own numbers."""
    if op == ADD_I64:
        target[place] = _signed(target[place] + source[place], 64)
    elif op == ADD_I128:
        total = _int128(target, place) + _int128(source, place)
        target[place] = _signed(total, 64)
        target[place + 1] = _signed(total >> 64, 64)
    elif op >= ADD_FIXED:
        end = place + op - ADD_FIXED
        target[place:end] = digits_of(
            number_of(target[place:end]) + number_of(source[place:end]), op
        )
    elif op == MIN:
        target[place] = min(target[place], source[place])
    elif op == MAX:
        target[place] = max(target[place], source[place])
    else:
        end = place + WORDS[op]
        target[place:end] = min(target[place:end], source[place:end])


def number_of(digits: list[int]) -> int:
    """Return the number that signed digits of 64 bits encode, in units of the first."""
    return sum(digit << (64 * place) for place, digit in enumerate(digits))


def digits_of(number: int, op: int) -> list[int]:
    """Return the digits of a sum of doubles."""
    digits = []
    for _ in range(op - ADD_FIXED):
        digits.append(_signed(number, 64))
        number = (number - digits[-1]) >> 64
    return digits


def _int128(words: list[int], place: int) -> int:
    return (words[place + 1] << 64) + words[place] % 2**64


def _signed(value: int, bits: int) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value
