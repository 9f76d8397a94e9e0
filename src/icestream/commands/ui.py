"""The command `icestream ui`: serves a page over histories until it is interrupted."""

from __future__ import annotations

import os
import threading
import webbrowser

from icestream.core.errors import DefinitionError
from icestream.dashboard.query_list import QueryList
from icestream.dashboard.server import DashboardServer
from icestream.runtime.version.history import known_checkpoints


def ui_command(
    checkpoints: list[str], port: int, *, open_: bool, until: threading.Event | None = None
) -> None:
    """Serve a page for some checkpoints, or for this user's last queries; print its address.

    Checkpoints may be folders of them. The page ends with Ctrl-C, or when `until` is set.
    """
    chosen = [each if "://" in each else os.path.abspath(each) for each in checkpoints]
    missing = [each for each in chosen if "://" not in each and not os.path.isdir(each)]
    if missing:
        msg = (
            f"there is no folder {missing[0]}: give the checkpointLocation of a query, or a folder "
            "with several of them"
        )
        raise DefinitionError(msg)
    library = QueryList(chosen) if chosen else QueryList(more=known_checkpoints)
    with DashboardServer(library, port) as page:
        print(f"The dashboard is at {page.url}", flush=True)
        print("Anyone with this address can read the page. Ctrl-C ends it.", flush=True)
        if open_:
            webbrowser.open(page.url)
        try:
            (until or threading.Event()).wait()
        except KeyboardInterrupt:
            print()
