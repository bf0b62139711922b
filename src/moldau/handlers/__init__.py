"""Request handlers. Each API has one module, named after its API key. Importing this package registers all handlers."""

import importlib
import pkgutil

from moldau.server.api import REGISTRY

__all__ = ["REGISTRY"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
