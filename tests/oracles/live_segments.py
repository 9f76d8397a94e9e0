"""Which segments are live after a commit, told from those before it one by one."""

from __future__ import annotations

from collections.abc import Iterable

from icestream.state.versions.commits import NO_SHARD, Commit, LiveSegment, is_base


def survivors(live: Iterable[LiveSegment], commit: Commit) -> tuple[LiveSegment, ...]:
    """Return the segments that are live at a commit, given those live before it."""
    released = frozenset(commit.released)
    return tuple(
        segment
        for segment in (*live, *commit.added)
        if (segment.shard, segment.info.ordinal) not in released
        and (NO_SHARD, segment.info.ordinal) not in released
        and (
            segment.version >= commit.bases[segment.shard]
            if is_base(segment.lifetime)
            else segment.info.expiry > commit.horizon
        )
    )
