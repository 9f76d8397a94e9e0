"""Where the machine code of kernels is stored: by the content of their sources.

Idea: code lies in a folder that is named after a digest of the kernel's module and of all modules
of the package that it imports. So it is found by every copy of the same sources, whatever their
path and their time stamps: another clone, an editable install, a container, a forked worker. A
change of a kernel that others call is a change of their digest, too.

Invariants:
1. Equal sources in another place compile nothing (`test_a_copy_of_the_sources_compiles_nothing`).
2. A kernel is compiled again when one that it calls has changed
   (`test_a_kernel_follows_the_kernels_it_calls`).
3. Code is loaded only from a folder that belongs to this user, because it is executed
   (`test_a_folder_of_somebody_else_is_not_used`).

Cost: reading the sources of a module once in a process; folders of other sources are deleted after
90 days.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from numba import config
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    NullCache,
    _CacheLocator,
)

_IMPORT = re.compile(r"^from ((?:icestream|bench)[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
#: seconds after which the code of other sources is deleted
_KEPT = 90 * 24 * 3600


def code_cache(function: Callable[..., Any]) -> Any:
    """Return the cache of a kernel's machine code; one that stores nothing if there is no place."""
    digest, root = source_digest(function.__module__), code_folder()
    if digest is None or root is None:
        return NullCache()
    return _KernelCache(function)  # type: ignore[no-untyped-call]


@cache
def code_folder() -> str | None:
    """Return the folder for the machine code of this user; None if there is none to write to."""
    if config.CACHE_DIR:  # type: ignore[attr-defined]
        return str(config.CACHE_DIR)  # type: ignore[attr-defined]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for folder in (
        os.path.join(home, "icestream", "kernels"),
        os.path.join(tempfile.gettempdir(), f"icestream-kernels-{os.getuid()}"),
    ):
        if _is_ours(folder):
            return folder
    return None


def _is_ours(folder: str) -> bool:
    """Return whether a folder can be made and written, by nobody but this user."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
    except OSError:
        return False
    others_write = found.st_mode & 0o022
    return found.st_uid == os.getuid() and not others_write and os.access(folder, os.W_OK)


@cache
def source_digest(module: str) -> str | None:
    """Return a digest of a module and all it imports from the package; None without sources.

    This module itself changes no code.
    """
    sources: dict[str, str] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        if name in sources or name not in sys.modules or name == __name__:
            continue
        try:
            text = sys.modules[name].__loader__.get_source(name)  # type: ignore[union-attr]
        except (AttributeError, ImportError, OSError):
            text = None
        if text is None:
            return None
        sources[name] = text
        for package, names in _IMPORT.findall(text):
            pending += [package, *(f"{package}.{each}" for each in re.findall(r"\w+", names))]
    digest = hashlib.sha256()
    for name in sorted(sources):
        digest.update(f"{name}\0{sources[name]}\0".encode())
    return digest.hexdigest()[:24]


class _Locator(_CacheLocator):
    """Tells numba where the code of a kernel lies."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._py_file = function.__code__.co_filename
        self._line = function.__code__.co_firstlineno
        self._stamp = str(source_digest(function.__module__))

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        """Return the locator of a kernel."""
        return cls(py_func)

    def get_cache_path(self) -> str:
        """Return the folder of the kernel's code."""
        return os.path.join(str(code_folder()), self._stamp)

    def get_source_stamp(self) -> str:
        """Return what code must have been made of."""
        return self._stamp

    def get_disambiguator(self) -> str:
        """Return what tells kernels of one name apart."""
        return str(self._line)

    def ensure_cache_path(self) -> None:
        """Make the folder; the first time, delete what has not been used for long."""
        path = self.get_cache_path()
        if not os.path.isdir(path):
            os.makedirs(path, exist_ok=True)
            _delete_old(str(code_folder()))


def _delete_old(root: str) -> None:
    """Delete the folders of sources for which nothing was compiled for long."""
    for entry in os.scandir(root):
        if time.time() - entry.stat().st_mtime > _KEPT:
            shutil.rmtree(entry.path, ignore_errors=True)


class _KernelCacheImpl(CompileResultCacheImpl):
    _locator_classes: Any = (_Locator,)


class _KernelCache(FunctionCache):
    _impl_class = _KernelCacheImpl
