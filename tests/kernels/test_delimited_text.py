"""Delimited text that all parsers read alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.kernels.delimited_text import is_plain_text
from tests.oracles.kernels.delimited_text import is_plain_text_reference


def letters(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(text.encode("latin1"), dtype=np.uint8)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("1,a b,2\n", True),
        ('1,"a,b","c"\r\n', True),
        ('"a"', True),
        ("", True),
        ('1,"",2\n', False),
        ('1,"a""b"\n', False),
        ('1,a"b\n', False),
        ('"a\nb"\n', False),
        ('1,"a\n', False),
        ("1, a\n", False),
        ("a\rb\n", False),
        ("1,0x1F\n", False),
        ("1,-0X1\n", False),
        ("1,a0x\n", True),
        ("1,a\\b\n", False),
        ("\xef\xbb\xbf1,a\n", False),
        ("\xef\xbc\x8c1,a\n", True),
    ],
)
def test_quotes_enclose_whole_values(text: str, plain: bool) -> None:
    assert is_plain_text(letters(text), ord(",")) == plain


#: pieces of text, some of them likely to be special together
TEXTS = st.lists(st.sampled_from([*'a," \t\r\n0x-\\\0', "0x", "\xef\xbb\xbf"]), max_size=12).map(
    "".join
)


@given(TEXTS, st.sampled_from(",\ta"))
def test_parity_plain_text_is_what_the_slow_version_accepts(text: str, separator: str) -> None:
    found = is_plain_text(letters(text), ord(separator))
    assert found == is_plain_text_reference(letters(text), ord(separator))
