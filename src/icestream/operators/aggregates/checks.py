"""Which types a function takes, and what to do about the others."""

from __future__ import annotations

import pyarrow as pa

from icestream.operators.aggregates.protocol import TypedCall


def is_word(kind: pa.DataType) -> bool:
    """Tell whether a value fits one word that has the order of the values."""
    if pa.types.is_decimal128(kind):
        return bool(kind.precision <= 18)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
    )


def check_numbers(call: TypedCall) -> None:
    """Refuse what cannot be added up."""
    for kind in call.types:
        number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal128)
        if not any(is_one(kind) for is_one in number):
            complaint = f"{call.function} needs a number, got {kind}"
            raise call.refusal(complaint, "cast the column to a numeric type first")


def check_booleans(call: TypedCall) -> None:
    """Refuse what is neither true nor false."""
    for kind in call.types:
        if not pa.types.is_boolean(kind):
            complaint = f"{call.function} needs a boolean, got {kind}"
            raise call.refusal(complaint, "use a comparison, for example sf.col('x') > 0")


def check_words(call: TypedCall) -> None:
    """Refuse what does not fit a word."""
    for kind in call.types:
        if not is_word(kind):
            complaint = f"{call.function} of a {kind} is not supported"
            advice = (
                "use a number, date, timestamp or boolean, decimals up to 18 digits, or a function "
                "that keeps whole values, as ice.collect_set and ice.user do"
            )
            raise call.refusal(complaint, advice)
