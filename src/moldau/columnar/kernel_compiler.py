"""Compiler of the codec's kernels with numba. A kernel is a function that is compiled to machine code.

A kernel has one signature. It is compiled, or loaded from the cache, when its module is imported. So after a successful
import all kernels of the module work.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from moldau.columnar.kernel_cache import kernel_cache_for

# Use import_module, so that mypy ignores numba's type annotations, which differ between versions.
numba: Any = import_module("numba")
types: Any = import_module("numba.core.types")
cgutils: Any = import_module("numba.core.cgutils")

Function = TypeVar("Function", bound=Callable[..., Any])

BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)
INT32_IN = types.Array(types.int32, 1, "C", readonly=True)
INT64_IN = types.Array(types.int64, 1, "C", readonly=True)
"""The types of read-only arrays. Writable arrays are accepted, too."""
BYTES_OUT = types.Array(types.uint8, 1, "C")
INT32_OUT = types.Array(types.int32, 1, "C")
INT64_OUT = types.Array(types.int64, 1, "C")
INT64 = types.int64


def kernel_helper(function: Function) -> Function:
    """Compiles a function that kernels call."""
    compiled: Function = numba.njit(nogil=True)(function)
    return compiled


def kernel(result: Any, *arguments: Any) -> Callable[[Function], Function]:
    """Returns a decorator that compiles a function with these types. The compiled function runs without the GIL."""

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
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.zext(builder.load(builder.inttoptr(values[0], cgutils.voidptr_t)), cgutils.intp_t)

    return types.int64(types.int64), generate


def _copy_bytes(_: Any, target: Any, to: Any, address: Any, length: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        source = builder.inttoptr(values[2], cgutils.voidptr_t)
        cgutils.raw_memcpy(builder, builder.gep(array.data, [values[1]]), source, values[3], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, types.int64, types.int64), generate


byte_at: Any = numba.extending.intrinsic(_byte_at)
"""byte_at(address) returns the byte at a memory address without any check."""

copy_bytes: Any = numba.extending.intrinsic(_copy_bytes)
"""copy_bytes(target, to, address, length) copies bytes from a memory address into target[to : to + length] without any
check. It uses memcpy, because a loop over the bytes takes three times as long."""
