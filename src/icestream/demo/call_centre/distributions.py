"""The distributions of the synthetic stream: the values of each column, and their frequencies.

Idea: `STREAM` defines the data completely, one line per grouping key and per aggregated field; the
generator draws from it, and the tests compare the result with it. Keys are drawn by shares. Times
are whole seconds of a Weibull distribution, which is short-tailed for shape 2, exponential for
shape 1 and heavy-tailed for shape 1/2, and zero for a given share of the rows.

Invariants:
1. Every key takes all its values, each with its share (`test_oracle_keys_come_with_their_shares`);
   there are too many agents for that test, but nearly all appear in a day, each within a shift
   (`test_oracle_all_agents_work_a_third_of_the_day`).
2. Every time has its share of zeros, its mean and its tail
   (`test_oracle_times_follow_their_distribution`).

Limits: the paper gives the numbers of sites, agents, requests per day and events per second, and
the groups seen in a day and in ten seconds; other cardinalities and all shapes are chosen here. The
paper names five of its six aggregated fields; `wrapUpTime` is assumed to be the sixth.

References: Shared SlideM, section 2.2 and appendix A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: steps of five consecutive requests: 144 steps for 5 requests are 28.8 steps per request, which
#: gives 1,000 events per second from 3 million requests per day
STEPS_OF_REQUESTS: tuple[int, ...] = (24, 8, 60, 16, 36)
#: seconds from the first to the last step of an average request; this makes about 1,000 agents
#: appear in every ten seconds at 1,000 events per second
REQUEST_SECONDS = 20.0
#: part of the day that an agent works; shifts begin uniformly over the day
SHIFT = 1 / 3
#: share of calls that are answered at the site where they arrive
ANSWERED_ON_SITE = 0.7


def _normalised(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shares: npt.NDArray[np.float64] = weights / weights.sum()
    return shares


@dataclass(frozen=True, slots=True)
class Uniform:
    """All values with the same share."""

    def shares(self, cardinality: int) -> npt.NDArray[np.float64]:
        """Return the share of each value; they add up to 1."""
        return np.full(cardinality, 1.0 / cardinality)


@dataclass(frozen=True, slots=True)
class Zipf:
    """The n-th value with a share proportional to `n ** -exponent`."""

    exponent: float

    def shares(self, cardinality: int) -> npt.NDArray[np.float64]:
        """Return the share of each value; they add up to 1."""
        ranks = np.arange(1, cardinality + 1, dtype=np.float64)
        return _normalised(ranks**-self.exponent)


@dataclass(frozen=True, slots=True)
class Weights:
    """Each value with a share proportional to its weight."""

    weights: tuple[float, ...]

    def shares(self, cardinality: int) -> npt.NDArray[np.float64]:
        """Return the share of each value; they add up to 1."""
        return _normalised(np.array(self.weights[:cardinality], dtype=np.float64))


@dataclass(frozen=True, slots=True)
class Key:
    """A grouping key, with values 1 to `cardinality`."""

    name: str
    cardinality: int
    law: Uniform | Zipf | Weights
    note: str

    def shares(self) -> npt.NDArray[np.float64]:
        """Return the share of each value over a whole day; they add up to 1."""
        return self.law.shares(self.cardinality)


@dataclass(frozen=True, slots=True)
class Time:
    """An aggregated field, in whole seconds, rounded down."""

    name: str
    #: mean seconds, before rounding down, of rows that `zeros` does not make zero
    mean: float
    shape: float
    #: share of rows in which the step took no such time
    zeros: float
    note: str
    #: whether the mean is that of the whole stream, with factors of each `Service`
    by_service: bool = False

    @property
    def scale(self) -> float:
        """Return the scale of the Weibull distribution with this mean."""
        return self.mean / math.gamma(1 + 1 / self.shape)


def _requests_with_leg(leg: int) -> float:
    return float(sum(leg <= steps for steps in STEPS_OF_REQUESTS))


_LEGS = max(STEPS_OF_REQUESTS)

STREAM: tuple[Key | Time, ...] = (
    Key("instance", 4, Uniform(), "server that handled the request"),
    Key("serviceId", 24, Zipf(1.0), "what the customer asked for; SERVICES has the names"),
    Key("agentId", 12_000, Uniform(), "uniform over a day, a third of them at any moment"),
    Key("mediaId", 5, Weights((60, 20, 10, 6, 4)), "voice, chat, e-mail, text message, social"),
    Key(
        "interactionLegId",
        _LEGS,
        Weights(tuple(_requests_with_leg(leg) for leg in range(1, _LEGS + 1))),
        "number of the step within its request",
    ),
    Key("agentSite", 20, Uniform(), "a function of agentId"),
    Key("callSite", 20, Uniform(), "the agent's site for 70 % of the requests, else any"),
    Key("direction", 3, Weights((75, 20, 5)), "inbound, outbound, internal"),
    Time("alertingTime", 7.0, 2.0, 0.00, "ringing at the agent"),
    Time("busyTime", 210.0, 1.0, 0.00, "agent and customer together", by_service=True),
    Time("wrapUpTime", 35.0, 1.0, 0.30, "agent's work afterwards"),
    Time("waitTime", 40.0, 0.5, 0.25, "customer in the queue", by_service=True),
    Time("helpTime", 60.0, 1.0, 0.93, "agent asking a supervisor"),
    Time("availableTime", 50.0, 1.0, 0.10, "agent free before the step"),
)

KEYS: dict[str, Key] = {column.name: column for column in STREAM if isinstance(column, Key)}
TIMES: dict[str, Time] = {column.name: column for column in STREAM if isinstance(column, Time)}


@dataclass(frozen=True, slots=True)
class Service:
    """A service, and how its times differ from the mean of the stream (before normalising)."""

    name: str
    waitTime: float  # noqa: N815 - the column's own name
    busyTime: float  # noqa: N815 - the column's own name


#: the n-th has serviceId n
SERVICES: tuple[Service, ...] = (
    Service("Billing", 1.3, 0.9),
    Service("Technical support", 1.6, 1.5),
    Service("Orders", 0.7, 0.8),
    Service("Delivery", 0.9, 0.6),
    Service("Returns", 1.0, 0.9),
    Service("New contracts", 0.4, 1.4),
    Service("Cancellations", 1.9, 1.2),
    Service("Account access", 1.1, 0.5),
    Service("Claims", 1.5, 1.8),
    Service("Appointments", 0.8, 0.5),
    Service("Roaming", 0.9, 0.9),
    Service("Network faults", 2.2, 1.1),
    Service("Payments", 0.8, 0.7),
    Service("Address changes", 0.6, 0.4),
    Service("Warranty", 1.2, 1.1),
    Service("Loyalty programme", 0.7, 0.8),
    Service("Business desk", 0.3, 1.7),
    Service("Fraud", 0.2, 2.0),
    Service("Complaints", 1.8, 1.6),
    Service("Travel", 1.0, 1.3),
    Service("Insurance", 1.1, 1.5),
    Service("Language line", 2.0, 1.4),
    Service("Partners", 0.5, 1.2),
    Service("Operator", 0.4, 0.3),
)


def service_factors(time: Time) -> npt.NDArray[np.float64]:
    """Return the factor of each service on a time; their mean, weighted by share, is 1."""
    if not time.by_service:
        return np.ones(len(SERVICES))
    factors = np.array([float(getattr(service, time.name)) for service in SERVICES])
    return factors / float(factors @ KEYS["serviceId"].shares())
