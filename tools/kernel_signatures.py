"""Write the signatures of kernels that are compiled on this machine for the present sources.

Idea: run the tests and benches first; what they compiled is what queries need.

usage: python tools/kernel_signatures.py
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from numba.core.dispatcher import Dispatcher

from icestream import kernels
from icestream.kernels.signatures import TypeText, known_signatures, types

FILE = Path(__file__).parents[1] / "src" / "icestream" / "kernels" / "signatures.json"


def compiled_signatures() -> dict[str, list[list[TypeText]]]:
    """Return the signatures whose machine code is stored for the sources of this process."""
    found: dict[str, list[list[TypeText]]] = {}
    for name, dispatcher in sorted(dispatchers()):
        stored = dispatcher._cache._cache_file._load_index()
        texts = [[written_type(each) for each in signature] for signature, *_ in stored]
        # literals are types of calls between kernels, which are compiled with their callers
        whole = {json.dumps(each) for each in texts if None not in each}
        if whole:
            found[name] = [json.loads(each) for each in sorted(whole)]
    return found


def dispatchers() -> Iterator[tuple[str, Any]]:
    """Yield all kernels of the package with their full names."""
    for module in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        for name, each in vars(import_module(module.name)).items():
            if isinstance(each, Dispatcher) and each.py_func.__module__ == module.name:
                yield f"{module.name}.{name}", each


def written_type(kind: Any) -> TypeText | None:
    """Return the text of a type; None for the type of a literal."""
    match kind:
        case types.IntegerLiteral() | types.BooleanLiteral():
            return None
        case types.Array():
            axes = ",".join(":" * kind.ndim)
            marks = ("~" if kind.layout == "A" else "") + ("" if kind.mutable else "=")
            return f"{kind.dtype}[{axes}]{marks}"
        case types.BaseTuple():
            parts = [written_type(each) for each in kind.types]
            if None in parts:
                return None
            if isinstance(kind, types.BaseNamedTuple):
                cls = kind.instance_class
                return {f"{cls.__module__}.{cls.__qualname__}": parts}
            return parts
    return str(kind)


def main() -> None:
    """Write the file, one signature a line."""
    before = known_signatures() if FILE.exists() else {}
    found = compiled_signatures()
    lines = [
        f"{json.dumps(name)}: [\n"
        + ",\n".join(f"  {json.dumps(each)}" for each in found[name])
        + "\n]"
        for name in sorted(found)
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    counts = [sum(map(len, each.values())) for each in (before, found)]
    print(f"{FILE.name}: {counts[1]} signatures of {len(found)} kernels, {counts[0]} before")


if __name__ == "__main__":
    main()
