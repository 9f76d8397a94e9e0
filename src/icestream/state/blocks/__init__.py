"""Windows of raw tuples on disk: fixed-size blocks, of which a few are in memory.

`layout` says how tuples lie in a block, `pool` decides which blocks stay in memory (without
touching one), `store` gives blocks places in files, `buffers` moves them, `repository` puts these
together for one window or for several over one stream, and `formulas` foretell the requests.
"""

from __future__ import annotations

from icestream.state.blocks.layout import BLOCK_BYTES, Layout
from icestream.state.blocks.repository import Repository, SharedRepository, WindowRepository
from icestream.state.blocks.store import LogStore, SlotStore, Store

__all__ = [
    "BLOCK_BYTES",
    "Layout",
    "LogStore",
    "Repository",
    "SharedRepository",
    "SlotStore",
    "Store",
    "WindowRepository",
]
