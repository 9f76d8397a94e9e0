"""Folders of runs on local disks, each with the arenas and exchange files of one run of a query.

Idea: the name of a run's folder begins with its epoch. A run removes the folders of earlier runs,
which are never trusted again, and keeps the folder of a run that took the checkpoint over: a losing
run that still works must not disturb it. Epochs start again with a new checkpoint at the same
location, so a folder of a later epoch without activity for a long time is removed too.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import uuid

from icestream.core.errors import StorageError

#: seconds after which a folder of a later epoch counts as one of an earlier checkpoint
_LONG = 3600.0
#: an epoch, which early releases did not write, and a random number
_NAME = re.compile(r"(?:([0-9]{8})-)?[0-9a-f]{12}")


def new_run(local: str, epoch: int) -> str:
    """Return the folder of a new run of a query."""
    return os.path.join(local, f"{epoch:08d}-{uuid.uuid4().hex[:12]}")


def remove_other_runs(run: str) -> None:
    """Remove the folders of other runs next to that of a run, except those of later runs.

    Whatever has another name stays: somebody may keep a checkpoint there.
    """
    local, own = os.path.split(run)
    try:
        others = os.listdir(local)
    except FileNotFoundError:
        return
    except OSError as error:
        msg = f"{local}: {error.strerror}; choose another folder with the option 'localDir'"
        raise StorageError(msg) from error
    for other in others:
        folder = os.path.join(local, other)
        if _NAME.fullmatch(other) and other != own and not _is_later(folder, own):
            shutil.rmtree(folder, ignore_errors=True)


def _is_later(folder: str, own: str) -> bool:
    theirs, ours = _NAME.fullmatch(os.path.basename(folder)), _NAME.fullmatch(own)
    if not theirs or not theirs[1] or not ours or int(theirs[1]) <= int(ours[1]):
        return False
    with contextlib.suppress(OSError):
        changed = max(os.stat(each).st_mtime for each in _with_children(folder))
        return time.time() - changed < _LONG
    return False


def _with_children(folder: str) -> list[str]:
    return [folder, *(os.path.join(folder, name) for name in os.listdir(folder))]
