"""`icestream warm`: make the machine code of all kernels before a query needs it."""

from __future__ import annotations

import os

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from icestream.core.errors import StorageError
from icestream.kernels.code_cache import code_folder
from icestream.kernels.signatures import compile_known


def warm(processes: int | None, *, quiet: bool) -> str:
    """Compile what is missing, with a progress bar; return what was done."""
    folder = code_folder()
    if folder is None:
        msg = (
            "there is no folder for machine code: set XDG_CACHE_HOME to a folder that you own and "
            "nobody else can write to"
        )
        raise StorageError(msg)
    progress = Progress(
        TextColumn("compiling kernels"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=quiet,
        transient=True,
    )
    with progress:
        task = progress.add_task("", total=None)
        count = compile_known(
            processes or os.cpu_count() or 1,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    return f"machine code of {count} kernels is in {folder}"
