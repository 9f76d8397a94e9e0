"""Sources without events for a stated time no longer hold back the watermark.

Idea: the driver notes when events of a source came last; while it runs without any for longer than
`idle`, the watermark follows the other sources. What the source sends afterwards behind the
watermark is late. The watermark itself is committed, so a restart, which counts from anew, never
takes it back. If no source sends, the watermark stands, since rows are a function of the events.
Windows of update streams are as fresh as possible instead: for them time then goes on by the clock.

Invariants:
1. A source that is idle holds nothing back while others send, and without others the watermark
   stands (`test_an_idle_source_does_not_hold_the_watermark`).
2. Windows of updates end though no event comes (`test_windows_end_in_silence`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from icestream.core.clock import Clock
from icestream.core.times import Micros
from icestream.plan.nodes.queries import Source


class IdleSources:
    """When events of each source came last."""

    def __init__(self, sources: Sequence[Source], clock: Clock) -> None:
        self._sources = tuple(sources)
        self._clock = clock
        self._last = [clock.monotonic()] * len(self._sources)
        #: names of the sources that are idle
        self.names: list[str] = []
        #: microseconds since the last event, if all sources are idle; otherwise 0
        self.silence: Micros = 0

    def passed(
        self, seen: Sequence[Micros | None], arrived: Collection[int]
    ) -> tuple[Micros | None, ...]:
        """Return the latest event times for the watermark: idle sources are as far as others."""
        now = self._clock.monotonic()
        for number in arrived:
            self._last[number] = now
        idle = [
            source.idle is not None and 1e6 * (now - last) > source.idle
            for source, last in zip(self._sources, self._last, strict=True)
        ]
        self.names = [
            each.name for each, is_idle in zip(self._sources, idle, strict=True) if is_idle
        ]
        self.silence = int(1e6 * (now - max(self._last))) if all(idle) else 0
        known = [
            (latest, source.slack)
            for latest, source, is_idle in zip(seen, self._sources, idle, strict=True)
            if not is_idle
        ]
        if not known or any(latest is None for latest, _ in known):
            return tuple(seen)
        least = min(latest - slack for latest, slack in known if latest is not None)
        return tuple(
            least + source.slack if is_idle else latest
            for latest, source, is_idle in zip(seen, self._sources, idle, strict=True)
        )
