"""Compiles the codec's kernels with numba. Each has one signature, and is compiled (or loaded, if that was done before)
when its module is imported, so that an import that succeeds means kernels that run.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from moldau.columnar.kernel_cache import kernel_cache_for

# Imported by name, because how much of it is typed differs from version to version of numba.
numba: Any = import_module("numba")
types: Any = import_module("numba.core.types")
cgutils: Any = import_module("numba.core.cgutils")

Function = TypeVar("Function", bound=Callable[..., Any])

BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
INT32_IN = types.Array(types.int32, 1, "C", readonly=True)
INT64_IN = types.Array(types.int64, 1, "C", readonly=True)
"""Arrays that cannot be written; those that can be are taken too."""
BYTES_OUT = types.Array(types.uint8, 1, "C")
INT32_OUT = types.Array(types.int32, 1, "C")
INT64_OUT = types.Array(types.int64, 1, "C")
INT64 = types.int64


def kernel_helper(function: Function) -> Function:
    """A piece of kernels, compiled into those that call it."""
    compiled: Function = numba.njit(nogil=True)(function)
    return compiled


def kernel(result: Any, *arguments: Any) -> Callable[[Function], Function]:
    """A function that runs compiled and without the GIL, with the types of its result and its arguments."""

    def compiled(function: Function) -> Function:
        dispatcher: Any = numba.njit(nogil=True)(function)
        cache = kernel_cache_for(function)
        if cache is not None:
            dispatcher._cache = cache
        dispatcher.compile(result(*arguments))
        dispatcher.disable_compile()
        ready: Function = dispatcher
        return ready

    return compiled


def _byte_at(_: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.zext(builder.load(builder.inttoptr(given[0], cgutils.voidptr_t)), cgutils.intp_t)

    return types.int64(types.int64), generate


def _copy_bytes(_: Any, target: Any, to: Any, address: Any, length: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        into = context.make_array(signature.args[0])(context, builder, given[0])
        source = builder.inttoptr(given[2], cgutils.voidptr_t)
        cgutils.raw_memcpy(builder, builder.gep(into.data, [given[1]]), source, given[3], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64, types.int64), generate


byte_at: Any = numba.extending.intrinsic(_byte_at)
"""byte_at(address): the byte there. Nothing is checked: the caller knows that it may be read."""

copy_bytes: Any = numba.extending.intrinsic(_copy_bytes)
"""copy_bytes(target, to, address, length) copies into target[to : to + length], by memcpy: a loop over the bytes takes
three times as long. Nothing is checked: the caller knows that they may be read and that the target has room."""
