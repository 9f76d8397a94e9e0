"""128-bit ids of rows, absorbed one column at a time.

Idea: a row's id is two 64-bit lanes (id_high, id_low). Each column of the row becomes a sequence of
*symbols*, and a symbol (a, b) is absorbed by `id_high = mix_high(id_high ^ a)`, `id_low =
mix_low(id_low ^ b)`, two unrelated bijections. A 64-bit value w is the symbol (w, w); null and "a
struct begins here" are symbols with a != b, which no value has. Bytes are their length followed by
their 8-byte words.

Invariants:
    1. Different rows give different sequences of symbols: each column's sequence shows where it
       ends (`test_oracle_identities_are_equal_exactly_when_keys_are`).
    2. For one column of non-null words id_high is a bijection of the value
       (`test_the_high_word_of_one_word_is_a_bijection`), so such keys never collide.
    3. The values never change (`test_golden_identities`).

Cost: per symbol two multiplications in each lane; no memory but the two lanes.

Limits: not keyed, so an adversary can construct collisions. Otherwise two different rows collide
with probability 2**-128. Little-endian machines.

References: the mixers are the finalisers of SplitMix64 (Stafford's variant 13) and of MurmurHash3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from icestream.kernels.compile import kernel

U64Array = npt.NDArray[np.uint64]
ByteArray = npt.NDArray[np.uint8]

#: initial value of both lanes: the id of a row without columns
START_HIGH = np.uint64(0x243F6A8885A308D3)
START_LOW = np.uint64(0x13198A2E03707344)

#: values of a mask: inside a null struct, null, or a value; an empty mask is all values
ABSENT, NULL, VALUE = 0, 1, 2

_NULL_HIGH = np.uint64(0xA4093822299F31D0)
_NULL_LOW = np.uint64(0x082EFA98EC4E6C89)
_STRUCT_HIGH = np.uint64(0x452821E638D01377)
_STRUCT_LOW = np.uint64(0xBE5466CF34E90C6C)

_HIGH_1 = np.uint64(0xBF58476D1CE4E5B9)
_HIGH_2 = np.uint64(0x94D049BB133111EB)
#: inverses of these two modulo 2**64
_UNDO_HIGH_1 = np.uint64(0x96DE1B173F119089)
_UNDO_HIGH_2 = np.uint64(0x319642B2D24D8EC3)
_LOW_1 = np.uint64(0xFF51AFD7ED558CCD)
_LOW_2 = np.uint64(0xC4CEB9FE1A85EC53)

_S1 = np.uint64(1)
_S3 = np.uint64(3)
_S27 = np.uint64(27)
_S30 = np.uint64(30)
_S31 = np.uint64(31)
_S33 = np.uint64(33)
_S54 = np.uint64(54)
_S60 = np.uint64(60)
_S62 = np.uint64(62)
_EIGHT = np.uint64(8)
_ZERO = np.uint64(0)
_SIGN_OFF = np.uint64(0x7FFFFFFFFFFFFFFF)
_FLOAT_INFINITY = np.uint64(0x7FF0000000000000)
_FLOAT_NAN = np.uint64(0x7FF8000000000000)


@kernel
def mix_high(x: np.uint64) -> np.uint64:
    """Hash 64 bits by a permutation (upper lane)."""
    x = (x ^ (x >> _S30)) * _HIGH_1
    x = (x ^ (x >> _S27)) * _HIGH_2
    return x ^ (x >> _S31)


@kernel
def mix_low(x: np.uint64) -> np.uint64:
    """Hash 64 bits by a permutation (lower lane)."""
    x = (x ^ (x >> _S33)) * _LOW_1
    x = (x ^ (x >> _S33)) * _LOW_2
    return x ^ (x >> _S33)


@kernel
def unmix_high(x: np.uint64) -> np.uint64:
    """Return the 64 bits that `mix_high` hashes to these."""
    x = (x ^ (x >> _S31) ^ (x >> _S62)) * _UNDO_HIGH_2
    x = (x ^ (x >> _S27) ^ (x >> _S54)) * _UNDO_HIGH_1
    return x ^ (x >> _S30) ^ (x >> _S60)


@kernel
def plain_float(bits: np.uint64) -> np.uint64:
    """Map all NaNs to one bit pattern before hashing, and both zeros to one."""
    magnitude = bits & _SIGN_OFF
    if magnitude == _ZERO:
        return _ZERO
    if magnitude > _FLOAT_INFINITY:
        return _FLOAT_NAN
    return bits


@kernel
def plain_floats(bits: U64Array, out: U64Array) -> None:
    """Write the canonical bits of doubles for hashing, as Spark normalises grouping keys."""
    for i in range(bits.size):
        out[i] = plain_float(bits[i])


@kernel
def absorb_marks(mask: ByteArray, id_high: U64Array, id_low: U64Array) -> None:
    """Absorb into a hash that a struct begins, or is null; an empty mask: begins in every row."""
    for i in range(id_high.size):
        kind = mask[i] if mask.size else VALUE
        if kind == VALUE:
            id_high[i] = mix_high(id_high[i] ^ _STRUCT_HIGH)
            id_low[i] = mix_low(id_low[i] ^ _STRUCT_LOW)
        elif kind == NULL:
            id_high[i] = mix_high(id_high[i] ^ _NULL_HIGH)
            id_low[i] = mix_low(id_low[i] ^ _NULL_LOW)


@kernel
def absorb_words(
    words: npt.NDArray[Any], mask: ByteArray, id_high: U64Array, id_low: U64Array
) -> None:
    """Absorb into a hash one integer of any width per row, sign-extended."""
    if mask.size == 0:
        for i in range(id_high.size):
            word = np.uint64(words[i])
            id_high[i] = mix_high(id_high[i] ^ word)
            id_low[i] = mix_low(id_low[i] ^ word)
        return
    for i in range(id_high.size):
        if mask[i] == VALUE:
            word = np.uint64(words[i])
            id_high[i] = mix_high(id_high[i] ^ word)
            id_low[i] = mix_low(id_low[i] ^ word)
        elif mask[i] == NULL:
            id_high[i] = mix_high(id_high[i] ^ _NULL_HIGH)
            id_low[i] = mix_low(id_low[i] ^ _NULL_LOW)


@kernel
def absorb_floats(bits: U64Array, mask: ByteArray, id_high: U64Array, id_low: U64Array) -> None:
    """Absorb into a hash one double per row, by its bits: NaN is NaN, and -0.0 is 0.0."""
    for i in range(id_high.size):
        kind = mask[i] if mask.size else VALUE
        if kind == VALUE:
            word = plain_float(bits[i])
            id_high[i] = mix_high(id_high[i] ^ word)
            id_low[i] = mix_low(id_low[i] ^ word)
        elif kind == NULL:
            id_high[i] = mix_high(id_high[i] ^ _NULL_HIGH)
            id_low[i] = mix_low(id_low[i] ^ _NULL_LOW)


@kernel
def absorb_bytes(
    offsets: npt.NDArray[Any], data: ByteArray, mask: ByteArray, id_high: U64Array, id_low: U64Array
) -> None:
    """Absorb into a hash `data[offsets[i]:offsets[i + 1]]` per row: length, padded words."""
    end_of_data = np.uint64(data.size)
    for i in range(id_high.size):
        kind = mask[i] if mask.size else VALUE
        if kind == VALUE:
            at, end = np.uint64(offsets[i]), np.uint64(offsets[i + 1])
            length = end - at
            high, low = mix_high(id_high[i] ^ length), mix_low(id_low[i] ^ length)
            while at + _EIGHT <= end:
                word = _load(data, at)
                high, low = mix_high(high ^ word), mix_low(low ^ word)
                at += _EIGHT
            rest = end - at
            if rest != _ZERO:
                if at + _EIGHT <= end_of_data:
                    word = _load(data, at) & ((_S1 << (rest << _S3)) - _S1)
                else:
                    word = _ZERO
                    for j in range(rest):
                        shift = np.uint64(j) << _S3
                        word |= np.uint64(data[at + np.uint64(j)]) << shift
                high, low = mix_high(high ^ word), mix_low(low ^ word)
            id_high[i], id_low[i] = high, low
        elif kind == NULL:
            id_high[i] = mix_high(id_high[i] ^ _NULL_HIGH)
            id_low[i] = mix_low(id_low[i] ^ _NULL_LOW)


@kernel
def _load(data: ByteArray, at: np.uint64) -> np.uint64:
    """Read 8 bytes as a little-endian word; the compiler makes it one load."""
    word = _ZERO
    for j in range(8):
        shift = np.uint64(j)
        word |= np.uint64(data[at + shift]) << (shift << _S3)
    return word
