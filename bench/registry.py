"""What a bench is, and which ones exist.

Idea: a bench states a claim in one line, measures figures, and compares them with bars, each a
required value with the measured one. It is pure data plus two functions, so a new claim is a new
module with a `BENCH` and one more name in `MODULES`:

    CASES = (Case("10 keys", 10), Case("1,000 keys", 1_000))

    def measure(size: Size, progress: Progress) -> Measurement: ...
    def plot(figures: Figures, target: Path) -> None: ...

    BENCH = Bench("keys", "one line that can turn out false", measure, plot)

Invariants:
1. A missing measurement never passes a bar (`test_a_bar_without_a_measurement_does_not_hold`).
2. Listing the benches imports no Spark (`test_listing_the_benches_imports_no_spark`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from icestream.core.errors import DefinitionError

#: modules of `bench` that export a `BENCH`, in the order they are listed
MODULES = (
    "first_minute",
    "windows.overlap",
    "windows.density",
    "windows.behind_joins",
    "windows.fast_input",
    "windows.batch_overhead",
    "safety.crash",
    "safety.verify",
    "safety.fuzz",
    "safety.soak",
    "safety.budget",
    "windows.vwap",
    "windows.shared_windows",
    "windows.over",
    "windows.call_centre",
    "windows.plan_choice",
    "windows.sinks",
    "windows.storage",
    "cold.growth",
    "cold.cold_state",
    "cold.recommender",
    "cold.user_state",
    "joins.stream_join",
    "joins.spill",
    "joins.multi_join",
    "joins.join_life",
    "updates.staleness",
    "updates.update_queue",
    "updates.update_windows",
    "updates.overload",
    "adaptation.fusion",
    "adaptation.fast_job",
    "adaptation.rescale",
    "adaptation.rescale_state",
    "adaptation.migration",
    "adaptation.moving_skew",
    "adaptation.split_combine",
    "adaptation.cluster",
    "adaptation.scale",
    "nexmark.nexmark",
)

#: JSON values by name
Figures = Mapping[str, Any]


class Size(StrEnum):
    """How much is measured."""

    SMALL = "small"
    FULL = "full"


class ProgressLog(Protocol):
    """Receives the progress of a bench."""

    def plan(self, steps: int) -> None:
        """Announce the number of steps."""

    def step(self, label: str) -> None:
        """Start the next step."""

    def note(self, line: str) -> None:
        """Print a line that stays visible."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A required value and the measured one."""

    name: str
    #: the requirement, readable: ">= 3"
    wanted: str
    #: None if it could not be measured
    measured: float | None
    holds: bool

    @classmethod
    def at_least(cls, name: str, least: float, measured: float | None) -> Bar:
        """Require a value of at least `least`."""
        return cls(name, f">= {least:g}", measured, measured is not None and measured >= least)

    @classmethod
    def at_most(cls, name: str, most: float, measured: float | None) -> Bar:
        """Require a value of at most `most`."""
        return cls(name, f"<= {most:g}", measured, measured is not None and measured <= most)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of a bench."""

    figures: Figures
    bars: tuple[Bar, ...] = ()
    #: versions of the other systems that were run
    systems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bench:
    """A claim and how it is measured."""

    name: str
    #: one line that can turn out false
    claim: str
    measure: Callable[[Size, ProgressLog], Measurement]
    #: draws the figures of an earlier measurement into a file
    plot: Callable[[Figures, Path], None] | None = None
    #: returns the bench with some of its cases
    narrowed: Callable[[Sequence[str]], Bench] | None = None


def benches() -> list[Bench]:
    """All benches, in the order they are listed."""
    return [import_module(f"bench.{module}").BENCH for module in MODULES]


def find(name: str) -> Bench:
    """Find a bench by its name."""
    known = {bench.name: bench for bench in benches()}
    if name not in known:
        msg = f"unknown bench {name!r}; choose one of: {', '.join(known)}"
        raise DefinitionError(msg)
    return known[name]
