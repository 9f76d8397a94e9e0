from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.core.errors import DefinitionError
from icestream.core.times import LONGEST
from icestream.core.units import (
    format_bytes,
    format_interval,
    format_memory,
    parse_bytes,
    parse_interval,
)

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("7b", 7),
        ("64k", 65_536),
        ("64 K", 65_536),
        ("64KB", 65_536),
        ("64 KiB", 65_536),
        ("512 MB", 512 << 20),
        (" 512mb ", 512 << 20),
        ("1.5 GB", 3 << 29),
        ("2 TB", 2 << 40),
        (4096, 4096),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "MB", "12 XB", "5i", "5 ib", "5 bb", "-1 MB", "1,5 MB", "1e3", "1 MB 2 KB", "9" * 5000],
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(DefinitionError, match="512 MB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", [0, -1, "0", "0 MB", "0.1 B", "0.0001 KB"])
def test_a_size_below_one_byte_is_refused(text: str | int) -> None:
    with pytest.raises(DefinitionError, match="at least one byte"):
        parse_bytes(text)


@pytest.mark.parametrize("value", [True, None, 1.5, b"1 MB"])
def test_only_text_and_whole_numbers_are_sizes(value: object) -> None:
    with pytest.raises(DefinitionError, match="cannot read"):
        parse_bytes(value)  # type: ignore[arg-type]


@given(st.integers(min_value=1, max_value=2**63))
def test_plain_numbers_are_bytes_to_the_last_one(size: int) -> None:
    assert parse_bytes(str(size)) == parse_bytes(size) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (1536, "1.5 KB"),
        ((1 << 20) - 1, "1.0 MB"),
        (512 << 20, "512.0 MB"),
        ((1 << 30) - 1, "1.0 GB"),
        (3 << 40, "3.0 TB"),
        (5000 << 40, "5000.0 TB"),
        (-2048, "-2.0 KB"),
    ],
)
def test_sizes_are_written_with_the_largest_readable_unit(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(min_value=1, max_value=2**50))
def test_memory_is_written_as_a_whole_number_that_is_enough(size: int) -> None:
    written = format_memory(size)
    assert size <= parse_bytes(written) <= 1024 + 1.1 * size


@given(st.integers(min_value=1, max_value=2**50))
def test_a_written_size_reads_back_within_its_last_digit(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.05)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("10 seconds", 10 * SECOND),
        ("10 second", 10 * SECOND),
        ("1 hour 30 minutes", HOUR + 1800 * SECOND),
        ("1 hour, 30 minutes", HOUR + 1800 * SECOND),
        ("1h30min", HOUR + 1800 * SECOND),
        ("24 HOURS", 24 * HOUR),
        ("interval 2 days", 48 * HOUR),
        ("INTERVAL 1 week", 168 * HOUR),
        ("1.5 s", 1_500_000),
        ("0.1 seconds", 100_000),
        ("250 ms", 250_000),
        ("7 us", 7),
        ("5 mins 3 secs", 303 * SECOND),
        ("1 day -1 hour", 23 * HOUR),
        ("-5 seconds", -5 * SECOND),
        ("0 seconds", 0),
        ("9007199254740993 microseconds", 9_007_199_254_740_993),
        (12, 12),
    ],
)
def test_intervals_are_read_as_people_write_them(text: str | int, length: int) -> None:
    assert parse_interval(text) == length


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "interval",
        "seconds",
        "10",
        "10 parsecs",
        "3 secondss",
        "3 mss",
        "1 month",
        "2 years",
        "5 m",
        "1 hour,",
        "1 hour and 2 minutes",
        "10 interval seconds",
        "- 5 seconds",
    ],
)
def test_what_is_no_interval_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(DefinitionError, match="10 seconds"):
        parse_interval(text)


@pytest.mark.parametrize("value", [True, None, 1.5])
def test_only_text_and_whole_numbers_are_intervals(value: object) -> None:
    with pytest.raises(DefinitionError, match="cannot read"):
        parse_interval(value)  # type: ignore[arg-type]


def test_a_fraction_of_a_microsecond_is_refused() -> None:
    with pytest.raises(DefinitionError, match="whole number of microseconds"):
        parse_interval("1.5 microseconds")


@pytest.mark.parametrize("text", ["99999999999 weeks", "-99999999999 weeks", LONGEST + 1])
def test_an_interval_that_does_not_fit_64_bits_is_refused(text: str | int) -> None:
    with pytest.raises(DefinitionError, match="too long"):
        parse_interval(text)


@given(st.integers(min_value=-LONGEST, max_value=LONGEST))
def test_every_interval_survives_writing_and_reading(length: int) -> None:
    assert parse_interval(format_interval(length)) == length


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "0 seconds"),
        (SECOND, "1 second"),
        (90 * SECOND, "1 minute 30 seconds"),
        (-90 * SECOND, "-1 minute -30 seconds"),
        (24 * HOUR, "1 day"),
        (1_001, "1 millisecond 1 microsecond"),
    ],
)
def test_intervals_are_written_with_the_largest_units(length: int, text: str) -> None:
    assert format_interval(length) == text
