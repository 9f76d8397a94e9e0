"""Session windows: stretches of a group's events in which no pause exceeds the gap."""

from __future__ import annotations

from icestream.operators.session.operator import SessionOperator
from icestream.operators.session.spec import Session, SessionSpec

__all__ = ["Session", "SessionOperator", "SessionSpec"]
