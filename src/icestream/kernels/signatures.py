"""The types with which queries call kernels, so that all machine code can be made beforehand.

Idea: `signatures.json` lists, for each kernel, the types of the arguments it is called with. It is
written from the machine code that tests and benches left behind (`tools/kernel_signatures.py`), so
nobody maintains it by hand. What is not in it is compiled when it is first called.

A type is written as numpy writes it: `int64`, and `int64[:]` for an array; `~` marks an array with
gaps between its elements, `=` one that must not be written. A tuple is a list, a named tuple an
object with one entry.

Invariants:
1. A type is read as it was written (`test_types_read_back_as_they_were_written`).
2. A query in a process with warmed code compiles nothing (`test_warmed_queries_compile_nothing`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module, resources
from multiprocessing import get_context
from typing import Any

from numba import types as numba_types

from icestream import kernels
from icestream.core.errors import IcestreamError
from icestream.kernels.code_cache import compiling, source_digest

# its hints do not cover what is used here
types: Any = numba_types

#: a type as it is written: a name, a list for a tuple, or {class: types} for a named tuple
TypeText = str | list[Any] | dict[str, Any]

_FILE = "signatures.json"
_ARRAY = re.compile(r"(\w+)\[([:,]+)\]([~=]*)")


def known_signatures() -> dict[str, list[list[TypeText]]]:
    """Return the types of the arguments with which queries call each kernel."""
    return dict(json.loads(resources.files(kernels).joinpath(_FILE).read_text()))


def compile_known(processes: int, advanced: Callable[[int, int], None]) -> int:
    """Make or load the machine code of all known signatures; return how many there are."""
    known = known_signatures()
    total, done = sum(map(len, known.values())), 0
    spawned = get_context("spawn")
    with ProcessPoolExecutor(processes, spawned, initializer=_be_quiet) as pool:
        names = sorted(known, key=lambda name: -len(known[name]))
        for name, _ in zip(names, pool.map(partial(_compile, known), names), strict=True):
            done += len(known[name])
            advanced(done, total)
    return total


def known_digests() -> set[str]:
    """Return the digests of the sources of all known kernels, by which code is stored."""
    modules = {name.rpartition(".")[0] for name in known_signatures()}
    found = (source_digest(import_module(each).__name__) for each in modules)
    return {each for each in found if each is not None}


def _be_quiet() -> None:
    compiling.quiet = True


def _compile(known: dict[str, list[list[TypeText]]], name: str) -> None:
    module, _, function = name.rpartition(".")
    dispatcher = getattr(import_module(module), function)
    for each in known[name]:
        dispatcher.compile(tuple(read_type(text) for text in each))


def read_type(text: TypeText) -> Any:
    """Return the type that a text in a signature stands for."""
    if isinstance(text, dict):
        ((name, parts),) = text.items()
        module, _, cls = name.rpartition(".")
        members = tuple(read_type(each) for each in parts)
        return types.BaseTuple.from_types(members, getattr(import_module(module), cls))
    if isinstance(text, list):
        return types.BaseTuple.from_types(tuple(read_type(each) for each in text))
    if (found := _ARRAY.fullmatch(text)) is None:
        return _scalar(text)
    name, axes, marks = found.groups()
    layout = "A" if "~" in marks else "C"
    return types.Array(_scalar(name), axes.count(":"), layout, readonly="=" in marks)


def _scalar(name: str) -> Any:
    kind = getattr(types, name, None)
    if not isinstance(kind, types.Type):
        msg = f"{_FILE} contains an unknown type {name!r}: install this version of Icestream again"
        raise IcestreamError(msg)
    return kind
