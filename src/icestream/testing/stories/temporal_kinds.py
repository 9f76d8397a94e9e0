"""Kinds of stories that tests of operators over lifetimes are told."""

from __future__ import annotations

from hypothesis import strategies as st

from icestream.testing.stories.temporal_story import Kind

#: few groups or several, in order or not, with lifetimes cut, with holes, slow or fast
KINDS = st.builds(
    Kind,
    groups=st.integers(1, 5),
    shuffled=st.booleans(),
    cuts=st.booleans(),
    holes=st.booleans(),
    pace=st.sampled_from([0, 4, 12]),
)
