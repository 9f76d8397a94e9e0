"""Delimited text that all parsers read alike."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.kernels import delimited_text
from icestream.kernels.delimited_text import collect_text, find_values, read_integers, read_times
from tests.oracles.kernels.delimited_text import find_values_reference


def letters(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(text.encode("latin1"), dtype=np.uint8)


def values_of(
    text: str, columns: int, separator: str = ",", null: str = ""
) -> list[list[str | None]] | None:
    """Return the values of each line, as the kernel finds them."""
    wanted = np.arange(columns)
    starts, sizes = np.empty((2, columns, len(text) // columns + 1), dtype=np.int64)
    data = letters(text)
    lines, ascii_only = find_values(data, ord(separator), letters(null), wanted, starts, sizes)
    if lines < 0:
        return None
    assert ascii_only == text.isascii()
    return [
        [text[start : start + size] if size else None for start, size in zip(*each, strict=True)]
        for each in zip(starts.T[:lines], sizes.T[:lines], strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1,a b,2\n", [["1", "a b", "2"]]),
        ('1,"a,b","c"\r\n', [["1", "a,b", "c"]]),
        ('"a","b, c ,0x1",\n\n,,"x"', [["a", "b, c ,0x1", None], [None, None, "x"]]),
        ("", []),
        ("1,2\n", None),
        ("1,2,3,4\n", None),
        ('1,"",2\n', None),
        ('1,2,"a""b"\n', None),
        ('1,2,a"b\n', None),
        ('1,2,"a\nb"\n', None),
        ('1,2,"a\n', None),
        ("1,2, a\n", None),
        ("1,2,a\rb\n", None),
        ("1,2,0x1F\n", None),
        ("1,2,-0X1\n", None),
        ("1,2,a0x\n", [["1", "2", "a0x"]]),
        ("1,2,a\\b\n", None),
        ("\xef\xbb\xbf1,a,2\n", None),
        ("\xef\xbc\x8c1,a,2\n", [["\xef\xbc\x8c1", "a", "2"]]),
    ],
)
def test_quotes_enclose_whole_values(text: str, found: list[list[str | None]] | None) -> None:
    assert values_of(text, 3) == found


#: pieces of text, some of them likely to be special together
TEXTS = st.lists(
    st.sampled_from([*'a," \t\r\n0x-\\\0', "0x", '"a', 'a"', ",a", "\r\n", "\xef\xbb\xbf"]),
    max_size=12,
).map("".join)


@given(TEXTS, st.sampled_from(",\ta"), st.sampled_from(["", "a", "0"]), st.integers(1, 3))
def test_parity_values_are_those_that_the_slow_version_finds(
    text: str, separator: str, null: str, columns: int
) -> None:
    wanted = find_values_reference(letters(text), ord(separator), null, columns)
    assert values_of(text, columns, separator, null) == wanted


@pytest.mark.parametrize("size", range(1, 40))
def test_values_are_found_across_the_parts_of_a_text(size: int) -> None:
    part = delimited_text._PART
    before = "".join(f"{n},b\n" for n in range(10_000))[: part - size].rsplit("\n", 1)[0] + "\n"
    pad = "x" * (part - len(before) - size)
    text = f'{before}{pad}{"0x1" * 5},"a, b"\n1,2\n'
    assert values_of(text, 2) == find_values_reference(letters(text), ord(","), "", 2)
    assert values_of(text.replace(f"{pad}0x1", "0x1"), 2) is None


def spans(texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    sizes = np.array([len(each) for each in texts], dtype=np.int64)
    return letters("".join(texts)), np.cumsum(sizes) - sizes, sizes


NUMBERS = st.one_of(
    st.integers(-(10**19), 10**19).map(str), st.text("0123456789-+x. ", max_size=20)
)


@given(st.lists(NUMBERS, max_size=5))
def test_parity_numbers_are_those_of_python(texts: list[str]) -> None:
    values = np.empty(len(texts), dtype=np.int64)
    usual = read_integers(*spans(texts), values)
    digits = [each.removeprefix("-") for each in texts if each]
    assert usual == all(each.isdigit() and len(each) <= 18 for each in digits)
    if usual:
        assert values.tolist() == [int(each or "0") for each in texts]


TIMES = st.one_of(
    st.datetimes().map(str),
    st.datetimes().map(lambda each: each.isoformat(timespec="milliseconds") + "Z"),
    st.from_regex(r"[0-9]{4}-[01][0-9]-[0-3][0-9][ T][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]?)?",
                  fullmatch=True),
    st.text("0123456789-: .TZ", max_size=26),
)  # fmt: skip


@given(TIMES)
def test_parity_times_are_those_of_pyarrow(text: str) -> None:
    values = np.empty(1, dtype=np.int64)
    zoned = read_times(*spans([text]), values)
    if not text or zoned < 0:
        return
    assert zoned == text.endswith("Z")
    found = pa.array([text.removesuffix("Z")]).cast(pa.timestamp("us")).cast(pa.int64())
    assert found.to_pylist() == values.tolist()


def test_usual_times_are_converted() -> None:
    texts = ["2024-02-29 23:59:59", "0001-01-01T00:00:00.5", "", "9999-12-31 23:59:59.999999"]
    values = np.empty(4, dtype=np.int64)
    assert read_times(*spans(texts), values) == 0
    expected = pa.array(texts[:2] + texts[3:]).cast(pa.timestamp("us")).cast(pa.int64())
    assert values[[0, 1, 3]].tolist() == expected.to_pylist()
    for odd in ("2023-02-29 00:00:00", "2024-01-01 24:00:00", "2024-01-01 00:00:00."):
        assert read_times(*spans([odd]), values) == -1


@given(st.lists(st.text("abc", max_size=9)))
def test_parity_text_is_copied(texts: list[str]) -> None:
    text, starts, sizes = spans(texts)
    offsets, data = np.empty(len(texts) + 1, np.int32), np.empty(len(text), np.uint8)
    collect_text(text, starts, sizes, offsets, data)
    assert data.tobytes() == "".join(texts).encode()
    assert offsets.tolist() == [*starts.tolist(), len(text)]
