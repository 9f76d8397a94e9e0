"""Decides, by load, whether all updates of a stream are processed or only the newest ones.

Idea: below capacity every update can be processed, so none needs to be superseded; above it only
the newest are worth the time. Load is the time needed to process what arrived, divided by the time
in which it arrived. Two thresholds and some patience keep a load near capacity from switching back
and forth; a backlog that has grown too long switches at once.

Invariants:
1. A load between the thresholds never switches (`test_loads_between_the_thresholds_never_switch`).
2. There is at most one switch in `patience` observations, except for long backlogs
   (`test_bounded_switches_are_at_least_patience_apart`).
3. Append mode processes every update, so it is entered only with a short backlog
   (`test_a_backlog_keeps_the_stream_in_update_mode`).

Cost: three numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros

SECOND: Micros = 1_000_000


class QueueMode(StrEnum):
    """What is done with the updates of a key that is behind."""

    #: all updates are processed, in order
    APPEND = "append"
    #: only the newest update is processed
    UPDATE = "update"


@dataclass(frozen=True)
class SwitchPolicy:
    """When to switch."""

    #: load above which only the newest values are processed
    enter: float = 1.0
    #: load below which all are processed again
    leave: float = 0.8
    #: number of consecutive observations needed
    patience: int = 3
    #: backlog in microseconds that switches to update mode at once
    backlog: Micros = 10 * SECOND

    def __post_init__(self) -> None:
        """Reject thresholds that would switch back and forth."""
        if not 0 < self.leave < self.enter or self.patience < 1 or self.backlog <= 0:
            msg = (
                "switching needs 0 < leave < enter, patience of 1 or more and a positive backlog; "
                f"got leave={self.leave}, enter={self.enter}, patience={self.patience}, "
                f"backlog={self.backlog}"
            )
            raise DefinitionError(msg)


@dataclass(frozen=True)
class ModeSwitch:
    """The mode, and how many consecutive observations favoured the other one."""

    mode: QueueMode = QueueMode.APPEND
    against: int = 0

    def after(self, load: float, backlog: Micros, rule: SwitchPolicy) -> ModeSwitch:
        """Return the next state, after a period with the given load.

        Args:
            load: time needed to process what arrived, divided by the time in which it arrived.
            backlog: microseconds needed to process everything that waits.
            rule: when to switch.
        """
        if self.mode is QueueMode.APPEND:
            if backlog > rule.backlog:
                return ModeSwitch(QueueMode.UPDATE)
            speaks = load > rule.enter
            other = QueueMode.UPDATE
        else:
            # the backlog must be short, or append mode begins late and stays late
            speaks = load < rule.leave and backlog <= rule.backlog * (1.0 - rule.leave)
            other = QueueMode.APPEND
        against = self.against + 1 if speaks else 0
        if against >= rule.patience:
            return ModeSwitch(other)
        return replace(self, against=against)
