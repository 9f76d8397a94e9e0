"""The price of a service, estimated as keys are served: the schedule INDEX is based on it.

Idea: let every service cost a price p. A key with weight h and mean gap g between updates is then
best served when it has waited x = sqrt(g*g + 2*p/h) - g, and the gain of serving it at once over
waiting on grows with h * (w - x), where w is its waiting time: INDEX serves the key with the
largest gain. With p = 0 that is the longest wait; the higher the price, the longer fast keys, whose
next update comes soon anyway, are deferred. One service too many is compensated in two ways:
another update is absorbed meanwhile, or the server is idle later. Where updates are absorbed, p is
such that keys are served, on average, exactly at x; where the server idles, p is the cost of the
delay for all keys served before. The price is the mean of both, weighted by how often each happens.

A key whose updates come at even gaps is known to stay fresh for the rest of its gap. The price at
which it would be served is then largest right after an update; the key is treated like one that
has waited until that price without knowing the future. If services are not scarce, no update is
skipped and the longest wait goes first; the price determines how much of either applies.

Invariants:
1. Kernel and reference agree (`test_parity_prices_are_those_of_the_reference`).
2. The price is never negative, and 0 as long as no key waits (`test_nobody_waits_at_a_price_of_0`).
3. Under overload it converges to that of the relaxed problem, known in closed form
   (`test_under_overload_the_price_is_that_of_the_relaxed_problem`).
4. A key with even gaps has the highest index right after an update, and its plain waiting time if
   services are free (`test_an_even_key_is_worth_most_right_after_its_update`).

Cost: O(1) per service, nine numbers per reader.

References: Whittle's relaxation of restless bandits; decision 14 has the argument.
"""

from __future__ import annotations

import math

import numpy as np

from icestream.core.arrays import Floats
from icestream.kernels.compile import kernel

#: words of a price, after the cost of a service: the price in use, services seen, the price at
#: which keys are served when they should be, the derivative of that wait by the price, services
#: whose delay is felt, its cost, how much of it is absorbed and how much ends idle, and when the
#: server will have been idle
COST = 0
PRICE = 1
SERVICES = 2
MATCHED = 3
SLOPE = 4
FELT = 5
DELAY = 6
ABSORBED = 7
IDLED = 8
FREE_FROM = 9
PRICE_WORDS = 10

#: minimum weight of the last service
STEP = 1 / 128
#: how much longer a key with even gaps seems to have waited, by the time since its last update:
#: keys that are served late in their gaps move towards the beginning, service by service
LATE = 0.75


@kernel
def fair_wait(gap: float, weight: float, price: float) -> float:
    """Return how long a key should wait at this price of a service."""
    charge = 2.0 * price / weight
    if charge == 0.0:
        return 0.0
    return charge / (math.sqrt(gap * gap + charge) + gap)


@kernel
def worth_of(waited: float, gap: float, weight: float, price: float) -> float:
    """Return the gain of serving a key now, at a price; the key with the largest is served."""
    return weight * (waited - fair_wait(gap, weight, price))


@kernel
def even_wait(waited: float, left: float, gap: float, price: float) -> float:
    """Return the wait, for its price, of a key with even gaps, `left` of the current one to go."""
    if gap < 1.0:
        return waited
    part = min(2.0 * price / (gap * gap), 1.0)
    whole = waited + left
    behind = waited + LATE * (gap - left)
    worth = (whole * whole * whole - behind * behind * (whole + gap)) / (2.0 * gap)
    same = worth / gap
    if worth >= 0.0:
        same = 2.0 * worth / (math.sqrt(gap * gap + 2.0 * worth) + gap)
    return (1.0 - part) * waited + part * same


@kernel
def learnt_price(facts: Floats) -> float:
    """Return the current estimate of the price of a service."""
    ended = facts[ABSORBED] + facts[IDLED]
    if facts[COST] <= 0.0 or ended <= 0.0:
        return float(facts[MATCHED])
    absorbed = facts[ABSORBED] / ended
    return float(absorbed * facts[MATCHED] + (1.0 - absorbed) * facts[DELAY])


@kernel
def learn_price(
    facts: Floats, waited: int, gap: float, weight: float, now: int, others: int
) -> None:
    """Update the estimate of the price from a service that begins now, of a key that waited."""
    cost = facts[COST]
    wait = np.float64(max(waited, 0))
    facts[SERVICES] += 1.0
    step = max(1.0 / facts[SERVICES], STEP)
    if now > facts[FREE_FROM]:
        facts[IDLED] += step * facts[FELT]
        facts[FELT] = 0.0
    facts[FREE_FROM] = now + cost if others == 0 else np.inf
    slope = 1.0 / max(math.sqrt(gap * gap + 2.0 * facts[MATCHED] / weight), 1.0)
    facts[SLOPE] += step * (slope - facts[SLOPE])
    error = weight * (wait - fair_wait(gap, weight, facts[MATCHED]))
    facts[MATCHED] = max(0.0, facts[MATCHED] + step * error / facts[SLOPE])
    delay = cost * weight * (wait + 0.5 * cost) * facts[FELT]
    facts[DELAY] += step * (delay - facts[DELAY])
    absorbed = facts[FELT] * (1.0 - math.exp(-cost / max(gap, 1.0)))
    facts[ABSORBED] += step * (absorbed - facts[ABSORBED])
    facts[IDLED] -= step * facts[IDLED]
    facts[FELT] += 1.0 - absorbed
