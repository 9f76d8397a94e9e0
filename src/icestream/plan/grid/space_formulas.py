"""The formulas for stored bytes and moved bytes, with tuples and with panes.

Idea: pure arithmetic over counts and sizes; `cost` applies it to measurements of a set of windows.

Invariant: the printed examples are reproduced
(`test_the_printed_example_comes_out_at_17_and_8_gigabytes`,
`test_the_printed_traffic_comes_out`).

References: Mendes, Bizarro, Marques (2013), formulas 2.1, 2.2, 3.1 and 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from icestream.state.snapshot_schedule import AFTER, AT_LATEST

#: bytes of a block of tuples, and of a slice of entries
BLOCK_BYTES = 65536


@dataclass(frozen=True)
class SpaceEstimate:
    """Bytes on the log and bytes in memory."""

    log: float
    memory: float

    def __add__(self, other: SpaceEstimate) -> SpaceEstimate:
        return SpaceEstimate(self.log + other.log, self.memory + other.memory)

    @property
    def total(self) -> float:
        return self.log + self.memory


@dataclass(frozen=True)
class TrafficEstimate:
    """Block requests and bytes per second of event time."""

    requests: float
    bytes: float

    def __add__(self, other: TrafficEstimate) -> TrafficEstimate:
        return TrafficEstimate(self.requests + other.requests, self.bytes + other.bytes)


def space_of_panes(
    *,
    aggregates: int,
    entries: float,
    panes: float,
    groups: float,
    open_bytes: float,
    entry_bytes: float,
    state_bytes: float,
) -> SpaceEstimate:
    """Return formula 2.1: entries of all panes on the log, open pane and running rows in memory."""
    return SpaceEstimate(
        log=aggregates * entries * panes * entry_bytes,
        memory=aggregates * (entries * open_bytes + groups * state_bytes),
    )


def space_of_tuples(
    *, aggregates: int, events: float, tuple_bytes: float, groups: float, state_bytes: float
) -> SpaceEstimate:
    """Return formula 2.2: tuples of the window on the log, running rows in memory."""
    return SpaceEstimate(log=events * tuple_bytes, memory=aggregates * groups * state_bytes)


def traffic(
    rate: float, record_bytes: float, transfers: float = 2, block: int = BLOCK_BYTES
) -> TrafficEstimate:
    """Return formulas 3.1 and 3.2: each block moves `transfers` times; no record spans two."""
    requests = transfers * rate / max(1, block // max(1, record_bytes))
    return TrafficEstimate(requests, requests * block)


def versions_kept(snapshot: float, logged: float) -> float:
    """Return, for the formulas, how many versions the log stores to rebuild a shard.

    These are the versions since the last snapshot, which is taken once they logged its size.
    """
    if logged <= 0:
        return 0.0
    return min(max(snapshot / logged, float(AFTER)), float(AT_LATEST)) / 2
