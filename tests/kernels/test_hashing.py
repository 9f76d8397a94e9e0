from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from icestream.kernels import hashing as h
from tests.oracles.kernels.hashing import (
    absorb_bytes_reference,
    absorb_floats_reference,
    absorb_marks_reference,
    absorb_words_reference,
    plain_floats_reference,
)

NO_MASK = np.empty(0, np.uint8)
Lanes = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]


def start(rows: int) -> Lanes:
    return np.full(rows, h.START_HIGH), np.full(rows, h.START_LOW)


def masks(rows: int) -> st.SearchStrategy[Any]:
    full = hnp.arrays(np.uint8, rows, elements=st.sampled_from([h.ABSENT, h.NULL, h.VALUE]))
    return st.just(NO_MASK) | full


def check_parity(
    fast: Callable[..., None],
    slow: Callable[..., None],
    rows: int,
    *inputs: npt.NDArray[Any],
) -> None:
    left, right = start(rows), start(rows)
    for _ in range(2):
        fast(*inputs, *left)
        slow(*inputs, *right)
        np.testing.assert_array_equal(left, right)


INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


@pytest.mark.parametrize("dtype", INTEGERS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_parity_words(dtype: type, data: st.DataObject) -> None:
    words = data.draw(hnp.arrays(dtype, st.integers(0, 20)))
    mask = data.draw(masks(len(words)))
    check_parity(h.absorb_words, absorb_words_reference, len(words), words, mask)


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(np.float64, st.integers(0, 20)), st.data())
def test_parity_floats(values: npt.NDArray[np.float64], data: st.DataObject) -> None:
    bits, mask = values.view(np.uint64), data.draw(masks(len(values)))
    check_parity(h.absorb_floats, absorb_floats_reference, len(values), bits, mask)
    fast, slow = np.empty_like(bits), np.empty_like(bits)
    h.plain_floats(bits, fast)
    plain_floats_reference(bits, slow)
    np.testing.assert_array_equal(fast, slow)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.binary(max_size=40), max_size=10), skip=st.integers(0, 9), data=st.data())
def test_parity_bytes(dtype: type, texts: list[bytes], skip: int, data: st.DataObject) -> None:
    content = np.frombuffer(b"\xff" * skip + b"".join(texts), np.uint8)
    offsets: npt.NDArray[Any] = (np.cumsum([0, *map(len, texts)]) + skip).astype(dtype)
    mask = data.draw(masks(len(texts)))
    inputs = (offsets, content, mask)
    check_parity(h.absorb_bytes, absorb_bytes_reference, len(texts), *inputs)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 20).flatmap(lambda rows: st.tuples(st.just(rows), masks(rows))))
def test_parity_marks(case: tuple[int, Any]) -> None:
    check_parity(h.absorb_marks, absorb_marks_reference, *case)


def test_bytes_are_read_to_their_end_and_not_further() -> None:
    """The same 11 bytes, once at the very end of the buffer and once with others behind them."""
    alone, inside = start(1), start(1)
    text = np.frombuffer(b"hello world", np.uint8)
    longer = np.frombuffer(b"hello world, and others", np.uint8)
    h.absorb_bytes(np.array([0, 11], np.int32), text, NO_MASK, *alone)
    h.absorb_bytes(np.array([0, 11], np.int32), longer, NO_MASK, *inside)
    np.testing.assert_array_equal(alone, inside)


def unmix_high(x: int) -> int:
    """Undo `mix_high`, step by step from the last."""
    full = 2**64
    x ^= x >> 31 ^ x >> 62
    x = x * pow(0x94D049BB133111EB, -1, full) % full
    x ^= x >> 27 ^ x >> 54
    x = x * pow(0xBF58476D1CE4E5B9, -1, full) % full
    return x ^ x >> 30 ^ x >> 60


@given(st.integers(0, 2**64 - 1))
def test_the_high_word_of_one_word_is_a_bijection(word: int) -> None:
    id_high, id_low = start(1)
    h.absorb_words(np.array([word], np.uint64), NO_MASK, id_high, id_low)
    assert unmix_high(int(id_high[0])) ^ int(h.START_HIGH) == word
    assert int(h.unmix_high(id_high[0])) ^ int(h.START_HIGH) == word


def test_no_word_has_the_identity_of_null() -> None:
    """Only one word has the id_high of null, as id_high is a bijection; its id_low differs."""
    id_high, id_low = start(2)
    h.absorb_words(np.zeros(2, np.int64), np.full(2, h.NULL, np.uint8), id_high, id_low)
    twin = unmix_high(int(id_high[0])) ^ int(h.START_HIGH)
    twin_id_high, twin_id_low = start(1)
    h.absorb_words(np.array([twin], np.uint64), NO_MASK, twin_id_high, twin_id_low)
    assert twin_id_high[0] == id_high[0]
    assert twin_id_low[0] != id_low[0]


KEYS: dict[str, npt.NDArray[np.int64]] = {
    "counted": np.arange(200_000),
    "stepped": np.arange(200_000) * 4096,
    "shifted": np.arange(200_000) << 44,
    "negative": -np.arange(200_000),
}


@pytest.mark.parametrize("lane", [0, 1])
@pytest.mark.parametrize("kind", list(KEYS))
def test_key_groups_fill_evenly(kind: str, lane: int) -> None:
    lanes = start(200_000)
    h.absorb_words(KEYS[kind], NO_MASK, *lanes)
    groups = ((lanes[lane] >> np.uint64(32)) * np.uint64(256)) >> np.uint64(32)
    counts = np.bincount(groups.astype(np.int64), minlength=256)
    chi_squared = float(((counts - 200_000 / 256) ** 2).sum() / (200_000 / 256))
    assert 255 - 6 * 22.6 < chi_squared < 255 + 6 * 22.6


def test_lanes_are_unrelated() -> None:
    id_high, id_low = start(200_000)
    h.absorb_words(np.arange(200_000), NO_MASK, id_high, id_low)
    same = np.unpackbits((id_high ^ id_low).view(np.uint8)).mean()
    assert abs(same - 0.5) < 0.001


def test_flipping_any_bit_flips_half_of_each_lane() -> None:
    words = np.random.default_rng(7).integers(0, 2**63, 2000)
    base = start(2000)
    h.absorb_words(words, NO_MASK, *base)
    for bit in range(64):
        flipped = start(2000)
        h.absorb_words(words.view(np.uint64) ^ np.uint64(1 << bit), NO_MASK, *flipped)
        for before, after in zip(base, flipped, strict=True):
            changed = np.unpackbits((before ^ after).view(np.uint8)).mean()
            assert abs(changed - 0.5) < 0.02
