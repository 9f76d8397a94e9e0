"""Where the machine code of kernels is stored: by the content of their sources.

Idea: code lies in a folder that is named after a digest of the kernel's module and of all modules
of the package that it imports. So it is found by every copy of the same sources, whatever their
path and their time stamps: another clone, an editable install, a container, a forked worker. A
change of a kernel that others call is a change of their digest, too.

Code is made for x86-64-v3 where the processor has it, so it runs on other machines, too (decision
71). What is not in the folder of this user is looked for in code that came with the package
`icestream-kernels`, and in code that the driver of a cluster sent (`code_archive`).

Invariants:
1. Equal sources in another place compile nothing (`test_a_copy_of_the_sources_compiles_nothing`).
2. A kernel is compiled again when one that it calls has changed
   (`test_a_kernel_follows_the_kernels_it_calls`), also where other code was shipped
   (`test_shipped_code_of_other_sources_is_not_used`).
3. Code is loaded only from a folder that belongs to this user, because it is executed
   (`test_a_folder_of_somebody_else_is_not_used`), and from installed packages.
4. Shipped code is used where there is no other (`test_shipped_code_compiles_nothing`).

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
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

from llvmlite import binding  # type: ignore[import-untyped]
from numba import config
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    NullCache,
    _CacheLocator,
)

from icestream.kernels.code_archive import received_folders

_IMPORT = re.compile(r"^from ((?:icestream|bench)[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
#: seconds after which the code of other sources is deleted
_KEPT = 90 * 24 * 3600
#: the processor that code is made for, and what a machine must have to run it
_BASELINE = "x86-64-v3"
_NEEDED = ("avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.2")
#: the package with machine code that a release builds: `pip install icestream[kernels]`
_SHIPPED = "icestream_kernels"
#: seconds of compiling before the first line about it; then lines become rarer
_PATIENCE = 3.0


def use_baseline() -> None:
    """Let numba make code for the baseline processor, unless the environment names another."""
    if "NUMBA_CPU_NAME" in os.environ or "NUMBA_CPU_FEATURES" in os.environ:
        return
    features = binding.get_host_cpu_features()
    if all(features.get(each) for each in _NEEDED):
        # in the environment: numba reads it again whenever it compiles, and children follow
        os.environ.update(NUMBA_CPU_NAME=_BASELINE, NUMBA_CPU_FEATURES="")
        config.reload_config()  # type: ignore[no-untyped-call]


use_baseline()


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


def shipped_folders() -> Iterator[str]:
    """Yield the folders with machine code that was not made here."""
    if (folder := _installed_folder()) is not None:
        yield folder
    if (own := code_folder()) is not None:
        yield from received_folders(own)


@cache
def _installed_folder() -> str | None:
    """Return the folder of machine code that is installed with the package; None without it."""
    found = find_spec(_SHIPPED)
    if found is None or not found.submodule_search_locations:
        return None
    return os.path.join(found.submodule_search_locations[0], "code")


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
    """The code of a kernel: what was made here, else what was shipped."""

    _impl_class = _KernelCacheImpl

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super()._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is None:
            found = self._shipped(sig, target_context)
        if found is None:
            compiling.begins()
        return found

    def _shipped(self, sig: Any, target_context: Any) -> Any:
        stamp = self._impl.locator.get_source_stamp()
        key = self._index_key(sig, target_context.codegen())  # type: ignore[no-untyped-call]
        for root in shipped_folders():
            folder = os.path.join(root, stamp)
            stored = IndexDataCacheFile(folder, self._impl.filename_base, stamp)  # type: ignore[no-untyped-call]
            if (data := stored.load(key)) is not None:  # type: ignore[no-untyped-call]
                return self._impl.rebuild(target_context, data)
        return None

    def _save_overload(self, sig: Any, data: Any) -> None:
        super()._save_overload(sig, data)  # type: ignore[no-untyped-call]
        compiling.ends(self._py_func.__name__)


class Compiling:
    """Counts the kernels that this process compiles, and says so while it takes long."""

    def __init__(self) -> None:
        #: kernels compiled, and whether a person is told
        self.count = 0
        self.quiet = False
        self._begun: float | None = None
        self._next = _PATIENCE

    def begins(self) -> None:
        """Note that a kernel has no machine code."""
        if self._begun is None:
            self._begun = time.monotonic()

    def ends(self, name: str) -> None:
        """Note that a kernel has been compiled."""
        self.count += 1
        taken = 0.0 if self._begun is None else time.monotonic() - self._begun
        if taken > self._next and not self.quiet:
            self._next = 2 * taken
            print(
                f"icestream: compiling kernels, once on this machine: {self.count} in "
                f"{taken:.0f} s, last {name} (`icestream warm` does it beforehand)",
                file=sys.stderr,
                flush=True,
            )


#: what this process compiles
compiling = Compiling()
