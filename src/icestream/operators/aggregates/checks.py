"""Checks of a function's input types, with advice for unsupported ones."""

from __future__ import annotations

import pyarrow as pa

from icestream.operators.aggregates.protocol import TypedCall


def is_word(kind: pa.DataType) -> bool:
    """Check whether values of an aggregate's input type fit into one word that preserves order."""
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
    """Reject input types of an aggregate that cannot be added up."""
    for kind in call.types:
        number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal128)
        if not any(is_one(kind) for is_one in number):
            complaint = f"{call.function} needs a number, got {kind}"
            raise call.refusal(complaint, "cast the column to a numeric type first")


def check_booleans(call: TypedCall) -> None:
    """Reject input types of an aggregate other than boolean."""
    for kind in call.types:
        if not pa.types.is_boolean(kind):
            complaint = f"{call.function} needs a boolean, got {kind}"
            raise call.refusal(complaint, "use a comparison, for example sf.col('x') > 0")


def check_words(call: TypedCall) -> None:
    """Reject input types of an aggregate that do not fit into a word."""
    for kind in call.types:
        if not is_word(kind):
            complaint = f"{call.function} of a {kind} is not supported"
            advice = (
                "use a number, date, timestamp or boolean, decimals up to 18 digits, or a function "
                "that stores whole values, such as ice.collect_set and ice.user"
            )
            raise call.refusal(complaint, advice)
