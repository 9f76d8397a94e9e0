"""Rows of state as text, and the columns for the origin of a row."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

#: columns before those of a table, if only one table is read
SHARD = "__shard"


GROUP = "__group"


def plain(value: Any) -> Any:
    """Return a value of a row of state in a form that JSON text supports."""
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta | Decimal):
        return str(value)
    return value


def as_text(row: Mapping[str, Any]) -> str:
    """Return a row of state as JSON text; equal rows have equal texts."""
    return json.dumps(plain(row), ensure_ascii=False, default=str)
