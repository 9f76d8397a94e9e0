"""Almost valid inputs: bytes, JSON and text with a few changes.

Idea: noise does not test a parser, because its first check refuses it; good input with a small
    error
does. So each mutation starts from a sample and changes one to four places: bits, bytes, integers at
the edge of their range, pieces that are cut, doubled or taken from another sample; in JSON the
values themselves, so that the result is JSON again.

Invariants:
1. The same random numbers give the same input (`test_the_same_dice_give_the_same_input`).
2. A sample is never changed itself (`test_a_sample_stays_as_it_is`).
"""

from __future__ import annotations

import copy
import json
import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

#: numbers at the edge of the types that readers use
EDGES = (
    *(0, 1, -1, 2, 7, 8, 63, 64, 127, 128, 255, 256),
    *(2**15 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32),
    *(2**40, 2**53, 2**62, 2**63 - 1, -(2**31), -(2**63), 2**64 - 1, 2**64, 10**30),
)
_STRANGE: tuple[Any, ...] = (
    *EDGES,
    *(None, True, False, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "0", "a" * 300),
    *("../../../etc/passwd", "/etc/passwd", "..", ".", "a/b", "\x00", "\ud800", "é" * 50, "NaN"),
    *([], {}, [[]], [None], {"": None}, {"is": "Plan"}, {"$schema": ""}, {"$type": "QUJD"}),
)
#: changes of one input
_MOST = 4
#: numbers that are written out
_DIGITS = re.compile(rb"[1-9][0-9]+")


def changed_bytes(sample: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    """Return bytes with a few changes."""
    data = bytearray(sample)
    for _ in range(dice.randint(1, _MOST)):
        dice.choice(_BYTE_CHANGES)(data, others, dice)
    return bytes(data)


def changed_numbers(sample: bytes, dice: random.Random) -> bytes:
    """Return bytes of the same length, with a few numbers at the edge of their range."""
    data = bytearray(sample)
    for _ in range(dice.randint(1, _MOST)):
        written = [match.span() for match in _DIGITS.finditer(data)] if dice.random() < 0.2 else []
        if written:
            _put_digits(data, *dice.choice(written), dice)
        elif data:
            _put_number(data, (), dice)
    return bytes(data[: len(sample)])


def changed_json(sample: Any, dice: random.Random) -> Any:
    """Return a JSON value with a few changes."""
    whole = [copy.deepcopy(sample)]
    for _ in range(dice.randint(1, _MOST)):
        _change_inside(whole, dice)
    return whole[0]


def json_bytes(value: Any) -> bytes:
    """Return JSON as bytes, even if a value is NaN or not valid Unicode."""
    return json.dumps(value, separators=(",", ":"), sort_keys=False).encode("utf-8", "replace")


def changed_text(sample: str, words: Sequence[str], dice: random.Random) -> str:
    """Return text with a few words and characters changed."""
    parts = sample.split(" ")
    for _ in range(dice.randint(1, _MOST)):
        place = dice.randrange(len(parts) + 1)
        match dice.randrange(6):
            case 0:
                parts.insert(place, dice.choice(words))
            case 1 if parts:
                del parts[place % len(parts)]
            case 2 if parts:
                parts[place % len(parts)] = dice.choice(words)
            case 3 if parts:
                parts[place % len(parts) :] = parts[: place % len(parts)]
            case 4:
                parts.insert(place, str(dice.choice(EDGES)))
            case _ if parts:
                word = list(parts[place % len(parts)])
                word.insert(
                    dice.randrange(len(word) + 1), chr(dice.choice((0, 10, 39, 40, 0x1F600)))
                )
                parts[place % len(parts)] = "".join(word)
    return " ".join(parts)[:4000]


def _flip(data: bytearray, others: Sequence[bytes], dice: random.Random) -> None:
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _put_byte(data: bytearray, others: Sequence[bytes], dice: random.Random) -> None:
    if data:
        data[dice.randrange(len(data))] = dice.choice((0, 1, 10, 32, 127, 128, 255))


def _put_number(data: bytearray, others: Sequence[bytes], dice: random.Random) -> None:
    form = dice.choice(("<H", "<I", "<Q"))
    width = struct.calcsize(form)
    place = dice.randrange(max(1, len(data) - width + 1))
    if dice.random() < 0.7:
        place &= -width
    data[place : place + width] = struct.pack(form, dice.choice(EDGES) % (1 << 8 * width))


def _put_digits(data: bytearray, first: int, last: int, dice: random.Random) -> None:
    """Write another number of as many digits."""
    few = dice.choice(("0", "9", "0123456789"))
    digits = [dice.choice("19"), *(dice.choice(few) for _ in range(last - first - 1))]
    data[first:last] = "".join(digits).encode()


def _cut(data: bytearray, others: Sequence[bytes], dice: random.Random) -> None:
    place = dice.randrange(len(data) + 1)
    del data[place : place + dice.choice((1, 8, 48, 1 << 30))]


def _double(data: bytearray, others: Sequence[bytes], dice: random.Random) -> None:
    place = dice.randrange(len(data) + 1)
    data[place:place] = data[place : place + dice.choice((1, 8, 48, 512))]


def _borrow(data: bytearray, others: Sequence[bytes], dice: random.Random) -> None:
    other = dice.choice(others) if others else b""
    place, length = dice.randrange(len(data) + 1), dice.choice((1, 8, 32, 64, 512))
    start = dice.randrange(len(other) + 1)
    data[place : place + length] = other[start : start + length]


_BYTE_CHANGES: tuple[Callable[[bytearray, Sequence[bytes], random.Random], None], ...] = (
    *(_flip, _put_byte, _put_number, _put_number),
    *(_cut, _double, _borrow),
)


def _change_inside(whole: list[Any], dice: random.Random) -> None:
    """Change one value somewhere inside a list of one value."""
    holder: Any = whole
    while True:
        place = (
            dice.choice(list(holder)) if isinstance(holder, dict) else dice.randrange(len(holder))
        )
        value = holder[place]
        if not isinstance(value, list | dict) or not value or dice.random() < 0.15:
            break
        holder = value
    match dice.randrange(8):
        case 0 if holder is not whole:
            del holder[place]
        case 1 if isinstance(holder, list) and holder is not whole:
            holder.append(copy.deepcopy(value))
        case 2 if isinstance(holder, dict):
            holder[dice.choice(("version", "is", "shard", "unknown"))] = value
        case 3 if isinstance(value, int):
            holder[place] = value + dice.choice((-1, 1, 2**31, -(2**63)))
        case 4 if isinstance(value, str):
            holder[place] = _changed_word(value, dice)
        case 5:
            holder[place] = [value]
        case _:
            holder[place] = copy.deepcopy(dice.choice(_STRANGE))


def _changed_word(word: str, dice: random.Random) -> str:
    place = dice.randrange(len(word) + 1)
    return word[:place] + dice.choice(("", "/", "..", "A", "0", "=", "\n")) + word[place + 1 :]
