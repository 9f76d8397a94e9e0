"""The obvious versions of the kernels in `bench.research.service_price`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.research.service_price import LATE, STEP


def even_wait_reference(waited: float, left: float, gap: float, price: float) -> float:
    """Return the same, formulated as the mean of two waits, weighted by how scarce services are."""
    if gap < 1:
        return waited
    scarce = min(1, 2 * price / gap**2)
    behind = waited + LATE * (gap - left)
    worth = ((waited + left) ** 3 - behind**2 * (waited + left + gap)) / (2 * gap)
    alike = math.sqrt(gap**2 + 2 * worth) - gap if worth >= 0 else worth / gap
    return waited + scarce * (alike - waited)


@dataclass
class PriceReference:
    """The price in plain arithmetic, number by number as in the kernel's idea."""

    #: microseconds of a service
    cost: float
    services: int = 0
    matched: float = 0.0
    slope: float = 0.0
    felt: float = 0.0
    delay: float = 0.0
    absorbed: float = 0.0
    idled: float = 0.0
    free_from: float = 0.0

    @property
    def price(self) -> float:
        """The current estimate of the price."""
        ended = self.absorbed + self.idled
        if self.cost <= 0 or ended <= 0:
            return self.matched
        return (self.absorbed * self.matched + self.idled * self.delay) / ended

    def worth(self, waited: int, gap: float, weight: float, price: float) -> float:
        """Return the gain of serving a key now."""
        return weight * (waited + gap - math.sqrt(gap * gap + 2 * price / weight))

    def learn(self, waited: int, gap: float, weight: float, now: int, others: int) -> None:
        """Update the estimate from a service."""
        self.services += 1
        step = max(1 / self.services, STEP)
        wait = max(waited, 0)
        ended = self.felt if now > self.free_from else 0.0
        self.felt -= ended
        self.idled = (self.idled + step * ended) * (1 - step)
        self.free_from = math.inf if others else now + self.cost
        cycle = math.sqrt(gap * gap + 2 * self.matched / weight)
        self.slope = (1 - step) * self.slope + step / max(cycle, 1)
        error = weight * (wait + gap - cycle)
        self.matched = max(0.0, self.matched + step * error / self.slope)
        harm = self.cost * weight * (wait + self.cost / 2) * self.felt
        self.delay = (1 - step) * self.delay + step * harm
        absorbed = self.felt * (1 - math.exp(-self.cost / max(gap, 1)))
        self.absorbed = (1 - step) * self.absorbed + step * absorbed
        self.felt += 1 - absorbed
