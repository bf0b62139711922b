"""Disk cache of compiled kernels. One process of a machine compiles the kernels, and the other processes load them.

The cache is numba's cache, but its directory is named by a digest of the kernel sources instead of their path. So the
cache also works for code in a zip file, in a read-only directory, or in a new directory for each application. If the
cache fails, the kernels are compiled again.
"""

import hashlib
import inspect
import logging
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_COMPILER_MODULE = "moldau.columnar.kernel_compiler"


def kernel_cache_for(function: Callable[..., Any]) -> Any:
    """Returns a cache for numba's dispatcher, or None if no cache is possible."""
    try:
        return _kernel_cache_class()(function)
    except Exception as error:
        log.debug("the kernel %s is compiled without a cache: %s", function.__name__, error)
        return None


@cache
def _kernel_cache_class() -> Any:
    """Defines the class `Cache` on first use, because its base classes are private in numba and may be missing."""
    caching: Any = import_module("numba.core.caching")

    class Locator(caching._CacheLocator):  # type: ignore[misc]
        def __init__(self, function: Callable[..., Any], directory: Path) -> None:
            self._line = function.__code__.co_firstlineno
            self._stamp = _digest(function)
            self._path = directory / f"moldau_columnar_{self._stamp[:16]}"

        def get_cache_path(self) -> str:
            return str(self._path)

        def get_source_stamp(self) -> str:
            return self._stamp

        def get_disambiguator(self) -> str:
            return str(self._line)

        @classmethod
        def from_function(cls, function: Callable[..., Any], _: str) -> "Locator | None":
            for directory in _directories():
                locator = cls(function, directory)
                try:
                    locator.ensure_cache_path()
                except OSError:
                    continue
                return locator
            return None

    class Files(caching.CompileResultCacheImpl):  # type: ignore[misc]
        _locator_classes = [Locator]

    class Cache(caching.FunctionCache):  # type: ignore[misc]
        _impl_class = Files

        def load_overload(self, *arguments: Any) -> Any:
            try:
                return super().load_overload(*arguments)
            except Exception as error:
                log.debug("a kernel could not be loaded from its cache: %s", error)
                return None

        def save_overload(self, *arguments: Any) -> None:
            try:
                super().save_overload(*arguments)
            except Exception as error:
                log.debug("a kernel could not be cached: %s", error)

    return Cache


def _directories() -> list[Path]:
    """Returns NUMBA_CACHE_DIR if it is set, else the user's cache directory and `__pycache__` beside this file."""
    config: Any = import_module("numba.core.config")
    if config.CACHE_DIR:
        return [Path(config.CACHE_DIR)]
    appdirs: Any = import_module("numba.misc.appdirs")
    user_caches = Path(appdirs.AppDirs(appname="numba", appauthor=False).user_cache_dir)
    return [user_caches, Path(__file__).parent / "__pycache__"]


def _digest(function: Callable[..., Any]) -> str:
    """Returns a hash of the numba version, the sources of the kernel, and the integers in the kernel's globals."""
    numba: Any = import_module("numba")
    numbers = sorted((name, value) for name, value in function.__globals__.items() if isinstance(value, int))
    sources = [inspect.getsource(sys.modules[name]) for name in (function.__module__, _COMPILER_MODULE)]
    return hashlib.sha256("\0".join([numba.__version__, repr(numbers), *sources]).encode()).hexdigest()
