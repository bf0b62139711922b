"""Request handlers: one module per API, named by its key. Importing this package registers all of them."""

import importlib
import pkgutil

from moldau.server.registry import REGISTRY

__all__ = ["REGISTRY"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
