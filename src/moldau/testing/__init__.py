"""In-process brokers for tests: `Broker` (one node, in memory), `Cluster` (several nodes), and pytest fixtures."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.testing.broker import Broker
    from moldau.testing.cluster import Cluster

__all__ = ["Broker", "Cluster"]


def __getattr__(name: str) -> Any:
    # Import on first use, because pytest loads this package as a plugin even if no test needs a node.
    if name in __all__:
        return getattr(importlib.import_module(f"{__name__}.{name.lower()}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
