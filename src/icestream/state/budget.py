"""Memory in bytes, reserved before it is used.

Idea: a `Budget` is a number of bytes. Every owner of state opens an `Account` and reserves before
    it
grows. A reservation that does not fit raises `Refused` and changes nothing; the caller frees space
and tries again. If nothing can be freed, it raises `fail(...)`, which lists who holds what. Shards
that run one after the other lend each other a part of their quotas for buffers (`BudgetInTurns`).

Invariants:
    1. `budget.held` is the sum of `account.held` and never exceeds `budget.total`
       (`test_oracle_any_sequence_of_calls_keeps_the_books_exact`).
    2. A refused call changes nothing (`test_a_refused_call_changes_nothing`).
    3. `peak` is the largest `held` so far (`test_peak_remembers_the_most_ever_held`).
    4. Bytes held in a part of a budget count in the whole too (`test_a_part_holds_of_the_whole`).
    5. What shards in turns hold adds up to no more than their quotas
       (`test_oracle_shards_in_turns_hold_no_more_than_their_quotas`).

Cost: O(1) per call, one uncontended lock.

Limits: a budget counts reservations, it does not measure. One budget serves one process; several
processes have budgets of their own, whose totals add up.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from fractions import Fraction

from icestream.core.errors import BudgetError
from icestream.core.units import format_bytes

#: parts of a quota: what a shard may always hold, and what it lends for buffers to whoever runs;
#: the rest is for shards in preparation while it waits
OWN = Fraction(5, 8)
LENT = Fraction(1, 4)


class Refused(Exception):
    """A reservation did not fit; nothing changed. Callers that can free space catch it."""

    def __init__(self, owner: str, needed: int, free: int) -> None:
        """Record the owner, the bytes requested and the bytes free."""
        super().__init__(owner, needed, free)
        self.owner = owner
        #: bytes requested
        self.needed = needed
        #: bytes that were free
        self.free = free

    def __str__(self) -> str:
        """Return a sentence with the bytes requested and the bytes free."""
        return (
            f"{self.owner} requested {format_bytes(self.needed)}, {format_bytes(self.free)} is free"
        )


class Budget:
    """A fixed number of bytes, shared by the accounts opened on it."""

    def __init__(self, total: int) -> None:
        """Create a budget of `total` bytes, none of them held."""
        if total < 0:
            msg = f"budget must not be negative; got {total}"
            raise ValueError(msg)
        #: bytes that may be held at once
        self.total = total
        #: bytes of the total that are for buffers alone; 0 if its owner divides it
        self.buffers = 0
        self._held = 0
        self._peak = 0
        self._accounts: list[Account] = []
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes held now by all accounts."""
        return self._held

    @property
    def free(self) -> int:
        """Bytes that can still be reserved."""
        return self.total - self._held

    @property
    def peak(self) -> int:
        """The most bytes ever held at once."""
        return self._peak

    def account(self, owner: str) -> Account:
        """Open an account; several may have the same owner, and the report adds them up."""
        account = Account(self, owner)
        with self._lock:
            self._accounts.append(account)
        return account

    def part(self, owner: str, total: int) -> Budget:
        """Set aside a part with accounts of its own; the whole counts only the bytes it holds."""
        return _Part(self.account(owner), total)

    def whole(self, needed: int) -> int:
        """Return what the whole must have so that this part of it has `needed` bytes."""
        return needed

    def charged(self, held: int) -> int:
        """Return what bytes held here count among all shards of a query."""
        return held

    def holders(self) -> dict[str, int]:
        """Bytes held by owner, largest first, without owners that hold none."""
        sums: dict[str, int] = {}
        with self._lock:
            for account in self._accounts:
                sums[account.owner] = sums.get(account.owner, 0) + account.held
        ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
        return {owner: held for owner, held in ranked if held}

    def report(self) -> str:
        """Return a table of who holds what."""
        rows = [*self.holders().items(), ("free", self.free), ("total", self.total)]
        width = max(len(owner) for owner, _ in rows)
        return "\n".join(f"{owner:<{width}}  {format_bytes(held):>10}" for owner, held in rows)

    def _move(self, account: Account, change: int) -> bool:
        """Add `change` to an account if it fits; False and no change if it does not."""
        with self._lock:
            if account.closed:
                msg = f"the account of {account.owner} is closed"
                raise ValueError(msg)
            if account.held + change < 0:
                msg = f"{account.owner} holds {account.held} bytes and cannot release {-change}"
                raise ValueError(msg)
            if self._held + change > self.total:
                return False
            account.held += change
            self._held += change
            self._peak = max(self._peak, self._held)
            return True

    def _close(self, account: Account) -> None:
        with self._lock:
            if account.closed:
                return
            self._held -= account.held
            account.held = 0
            account.closed = True
            self._accounts.remove(account)


class Account:
    """What one owner holds of a budget; created by `Budget.account`."""

    def __init__(self, budget: Budget, owner: str) -> None:
        self.budget = budget
        self.owner = owner
        #: bytes held now
        self.held = 0
        #: a closed account holds nothing and accepts no calls except `close`
        self.closed = False

    def try_reserve(self, size: int) -> bool:
        """Reserve `size` more bytes if they are free; False and no change if they are not."""
        return self.budget._move(self, _size(size))

    def reserve(self, size: int) -> None:
        """Reserve `size` more bytes, or raise `Refused` and change nothing."""
        if not self.try_reserve(size):
            raise Refused(self.owner, size, self.budget.free)

    def release(self, size: int) -> None:
        """Release `size` bytes; more than are held is a ValueError and changes nothing."""
        self.budget._move(self, -_size(size))

    def resize(self, size: int) -> None:
        """Hold exactly `size` bytes, or raise `Refused` and change nothing."""
        change = _size(size) - self.held
        if not self.budget._move(self, change):
            raise Refused(self.owner, change, self.budget.free)

    def close(self) -> None:
        """Release everything; closing twice is fine."""
        self.budget._close(self)


class _Part(Budget):
    """A part of another budget: at most `total` bytes of it."""

    def __init__(self, whole: Account, total: int) -> None:
        super().__init__(total)
        self._whole = whole

    @property
    def free(self) -> int:
        return min(super().free, self._whole.budget.free)

    def whole(self, needed: int) -> int:
        whole = self._whole.budget
        return whole.whole(-(-needed * whole.total // max(1, self.total)))

    def _move(self, account: Account, change: int) -> bool:
        if not self._whole.budget._move(self._whole, max(0, change)):
            return False
        moved = False
        try:
            moved = super()._move(account, change)
        finally:
            if moved != (change > 0):
                self._whole.release(abs(change))
        return moved

    def _close(self, account: Account) -> None:
        held = account.held
        super()._close(account)
        self._whole.release(held)


class BudgetInTurns(Budget):
    """The budget of a running shard, with the buffers that shards of its task lend each other."""

    def __init__(self, quota: int, buffers: int) -> None:
        """Take the own part of a quota, and so many bytes for buffers."""
        super().__init__(int(quota * OWN) + buffers)
        self.buffers = buffers
        self._lent = int(quota * LENT)

    def whole(self, needed: int) -> int:
        return math.ceil((needed - self.buffers) / OWN)

    def charged(self, held: int) -> int:
        return held - self.buffers + self._lent


def buffers_in_turns(quotas: Sequence[int], tasks: int) -> int:
    """Return the bytes for buffers of each shard that runs, of the quotas of all that take turns.

    `tasks` is how many of them run at the same time.
    """
    return sum(int(quota * LENT) for quota in quotas) // tasks


def fail(budget: Budget, needed: int, owner: str) -> BudgetError:
    """Return the budget error for a reservation for which nothing could be freed."""
    error = BudgetError(
        f"{owner} needs {format_bytes(needed)}, but only {format_bytes(budget.free)} of "
        f"{format_bytes(budget.total)} is free and nothing more can be evicted. "
        f"Who holds what:\n{budget.report()}"
    )
    error.needed = budget.whole(budget.total + max(needed - budget.free, 0))
    return error


def shortage(budget: Budget, refused: Refused) -> BudgetError:
    """Return the budget error for a refusal, even if memory was freed since."""
    return fail(budget, budget.free + refused.needed - refused.free, refused.owner)


def _size(size: int) -> int:
    if size < 0:
        msg = f"bytes must not be negative; got {size}"
        raise ValueError(msg)
    return size
