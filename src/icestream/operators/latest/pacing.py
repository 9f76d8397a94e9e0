"""How many keys to serve at once, so that the time of a batch is used and not exceeded.

Idea: the shards of a task run one after the other and share the time of a batch. Each gets a part
of what is left, by its expected work, so what one leaves the next has. A call of the user's
function takes a fixed time plus a time per key. Both are learnt from past calls; newer ones count
more. Each slice is planned to take half of the remaining time, so a wrong estimate is noticed while
half of the time is left; the last slices are small. Nothing is known before the first call: it
serves one key, and a second one follows only if there is time for as long a call again. What a
shard has learnt, the shards after it begin with. A call that takes far longer than expected counts
only if the next one does, too.

While load is below capacity every update can be processed; above it only the newest are worth the
time. Load is the time needed to process what arrived, divided by the time in which it arrived. Two
thresholds and some patience keep a load near capacity from switching back and forth; a backlog that
has grown too long switches at once.

Invariants:
1. Slices of a function with steady cost end within the available time, and use most of it
   (`test_bounded_slices_end_within_the_time_there_is`), also in a task of several shards
   (`test_bounded_shards_of_a_task_share_its_time`).
2. A task always serves at least one key for each step (`test_a_batch_without_time_serves_one_key`,
   `test_a_task_without_time_serves_one_key`).
3. One slow call does not slow down the calls after it (`test_one_slow_call_is_not_believed`).
4. Also the first batches keep their time (`test_bounded_the_first_batches_keep_their_time`).
5. A load between the thresholds never switches (`test_loads_between_the_thresholds_never_switch`).
6. There is at most one switch in `patience` observations, except for long backlogs
   (`test_bounded_switches_are_at_least_patience_apart`).
7. Append mode processes every update, so it is entered only with a short backlog
   (`test_a_backlog_keeps_the_stream_in_update_mode`).

Cost: eight numbers for each step, kept from batch to batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from icestream.core.errors import DefinitionError
from icestream.core.times import INFINITY, Micros

#: factor by which the weight of older calls shrinks with each call
MEMORY = 0.9
#: a slice has at most this many times the keys of the largest one so far
GROWTH = 8
#: maximum number of keys in a slice
MOST_KEYS = 65_536
#: a call that takes this many times as long as expected counts only if the next one does, too
SURPRISE = 3
#: numbers of a pace
_SUMS = 8


@dataclass
class ServingTime:
    """The time for serving that the shards of a task share, in the order in which they run."""

    #: microseconds for all of them
    budget: Micros
    #: expected work of the shards that have not begun, relative to each other
    weights: list[float] = field(default_factory=lambda: [1.0])
    spent: Micros = 0
    #: numbers of the steps that have served a key
    served: set[int] = field(default_factory=set)
    #: what the shards so far have learnt about each step
    learnt: dict[int, Pace] = field(default_factory=dict)

    def share(self, paces: Sequence[Pace] = ()) -> Micros:
        """Return the microseconds of the next shard; its paces take over what others learnt."""
        for step, pace in enumerate(paces):
            pace.adopt(self.learnt.get(step, pace))
            self.learnt[step] = pace
        if self.budget == INFINITY:
            return INFINITY
        mine, *others = self.weights or [1.0]
        self.weights = others
        return int((self.budget - self.spent) * mine / (mine + sum(others)))


@dataclass
class Pace:
    """The cost of calls: sums over past calls, weighted by age."""

    #: weight, keys, keys squared, microseconds, keys times microseconds, largest slice; keys and
    #: microseconds of a surprisingly slow last call
    sums: list[float] = field(default_factory=lambda: [0.0] * _SUMS)

    def adopt(self, other: Pace) -> None:
        """Take over what another pace of the same step has learnt, if this one knows nothing."""
        if not self.sums[0] and (other.sums[0] or not self.sums[6]):
            self.sums[:] = other.sums

    def learn(self, keys: int, took: float) -> None:
        """Record a call that served `keys` keys in `took` microseconds."""
        doubted, slow = self.sums[6:]
        if not self.sums[0]:
            # the first call may load a model: it counts only if the next is as slow
            if doubted and slow / doubted <= SURPRISE * took / keys:
                self._add(doubted, slow)
                doubted = 0.0
            elif not doubted:
                self.sums[5:] = [keys, keys, took]
                return
        if self.sums[0] and took > SURPRISE * self._expected(keys):
            if not doubted:
                self.sums[6:] = [keys, took]
                return
            self.sums[:5] = [0.0] * 5
            self._add(doubted, slow)
        self._add(keys, took)
        self.sums[6:] = [0.0, 0.0]

    def _add(self, keys: float, took: float) -> None:
        weight, n, nn, t, nt, most = self.sums[:6]
        self.sums[:6] = [
            weight * MEMORY + 1,
            n * MEMORY + keys,
            nn * MEMORY + keys * keys,
            t * MEMORY + took,
            nt * MEMORY + keys * took,
            max(most, keys),
        ]

    def _expected(self, keys: int) -> float:
        call, each = self.cost
        return call + each * keys

    @property
    def cost(self) -> tuple[float, float]:
        """Return the fixed microseconds of a call, and those per key."""
        weight, n, nn, t, nt = self.sums[:5]
        if weight == 0:
            return 0.0, 0.0
        spread = weight * nn - n * n
        each = (weight * nt - n * t) / spread if spread > 1e-9 * n * n else t / n
        each = min(max(each, 0.0), t / n)
        return max(0.0, (t - each * n) / weight), each

    def slice(self, left: Micros, *, first: bool) -> int:
        """Return how many keys to serve next in the time `left`; 0 to stop.

        The first slice of a batch has at least one key, whatever the time.
        """
        if self.sums[0] == 0:
            doubted, slow = self.sums[6:]
            return int(first or left > (slow / doubted if doubted else 0))
        call, each = self.cost
        if left < call + each:
            return int(first)
        most = min(MOST_KEYS, int(self.sums[5]) * GROWTH)
        if each == 0:
            return most
        half = (left / 2 - call) / each
        return min(most, max(1, int(half)))


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
