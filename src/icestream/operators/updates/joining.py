"""A join in front of a queue: matches of two update streams become updates of their key.

Idea: rows of both sides come in one stream, each with the number of its side and the columns of the
other side empty. The join keeps what can still match; what it delivers enters the queue as the
key's update, so that under load only the newest match of a key is processed.

Invariants:
1. What is served in the end is the newest match of every key, also over restarts at any batch
   (`test_oracle_the_newest_match_of_every_key_is_served`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.core.times import Micros
from icestream.operators.protocol import Shard
from icestream.operators.updates.folding import ORIGIN, Folded, folded, joined
from icestream.operators.updates.join import LEFT, RIGHT, UpdateJoin
from icestream.operators.updates.kept import Kept, State
from icestream.operators.updates.streams import UpdateStream


@dataclass(frozen=True)
class JoinedBy:
    """Two update streams that are joined on their key."""

    left: UpdateStream
    right: UpdateStream
    within: Micros
    condition: str | None = None
    zone: str = "UTC"

    def operator(self) -> UpdateJoin:
        """Return the join; DefinitionError for what cannot be."""
        return UpdateJoin(
            self.left, self.right, within=self.within, condition=self.condition, zone=self.zone
        )


class JoinFront:
    """The join of one shard."""

    def __init__(self, spec: JoinedBy, shard: Shard) -> None:
        """Go on with what the shard's arena has."""
        self._spec = spec
        self._join = spec.operator()
        self._kept = Kept(shard.arena, shard.account, "join")
        known = self._kept.load()
        if known is not None:
            self._join.recall(known)

    @property
    def late(self) -> int:
        """Return how many rows were not newer than their key's latest of their side."""
        return self._join.late

    def take(self, rows: pa.RecordBatch) -> Folded | None:
        """Take rows of both sides and return the matches they make, as updates."""
        sides = np.asarray(rows.column(ORIGIN).to_numpy())
        found = []
        for port, stream in ((LEFT, self._spec.left), (RIGHT, self._spec.right)):
            mine = rows.filter(pa.array(sides == port)).select(stream.schema.names)
            order = np.argsort(stream.times(mine), kind="stable")
            found.append(self._join.on_rows(port, mine.take(pa.array(order))))
        matches = joined(found)
        if not matches.num_rows:
            return None
        result = self._join.result
        times, ones = result.times(matches), np.ones(matches.num_rows, dtype=np.int64)
        return folded(Folded.of(*result.identify(matches), times, times, ones, matches))

    def save(self) -> None:
        """Keep what is known until the next version."""
        self._kept.save(self._join.state())

    def state(self) -> State:
        """Return what is known, for a snapshot."""
        return self._join.state()

    def recall(self, state: State) -> None:
        """Go on where a snapshot was taken."""
        self._join.recall(state)
