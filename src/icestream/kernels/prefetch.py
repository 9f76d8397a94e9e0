"""Prefetching a row into the cache before it is needed.

Idea: rows of keys are scattered over memory. If it is known which ones come next, prefetching all
    of
them at once costs one cache miss instead of one for each.

Cost: one instruction; a row that is never used afterwards wastes its place in the cache.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils as untyped
from numba.extending import intrinsic

from icestream.kernels.compile import PLAIN

cgutils: Any = untyped
_WRITE, _KEEP, _DATA = 1, 3, 1


def _ask(context: Any, builder: Any, kinds: Any, arguments: Any) -> Any:
    """Emit the instruction for an element of an array."""
    array = context.make_array(kinds[0])(context, builder, arguments[0])
    place = builder.ptrtoint(array.data, ir.IntType(64))
    steps = cgutils.unpack_tuple(builder, array.strides)
    for step, index, kind in zip(steps, arguments[1:], kinds[1:], strict=True):
        number = context.cast(builder, index, kind, types.int64)
        place = builder.add(place, builder.mul(number, step))
    pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    shape = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
    ask = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
    builder.call(ask, [builder.inttoptr(place, pointer), flag(_WRITE), flag(_KEEP), flag(_DATA)])
    return context.get_dummy_value()


def _prefetch(_: Any, table: Any, row: Any, column: Any) -> Any:
    """Prefetch `table[row, column]`; nothing is changed, no index is checked."""
    return types.void(table, row, column), lambda context, builder, signature, arguments: _ask(
        context, builder, signature.args, arguments
    )


def _prefetch_word(_: Any, words: Any, at: Any) -> Any:
    """Prefetch `words[at]`; nothing is changed, no index is checked."""
    return types.void(words, at), lambda context, builder, signature, arguments: _ask(
        context, builder, signature.args, arguments
    )


def _nothing(*_: Any) -> None:
    """Do nothing: a plain kernel has no processor to ask."""


prefetch: Any = _nothing if PLAIN else intrinsic(_prefetch)
prefetch_word: Any = _nothing if PLAIN else intrinsic(_prefetch_word)
