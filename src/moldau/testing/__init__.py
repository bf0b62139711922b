"""For tests: a broker in the test's own process, ready at once (`Broker`), a cluster of several (`Cluster`), and pytest
fixtures that give them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.testing.broker import Broker
    from moldau.testing.cluster import Cluster

__all__ = ["Broker", "Cluster"]


def __getattr__(name: str) -> Any:
    # Loaded when first used: pytest imports this package with its plugins, whether a test needs a node or not.
    if name == "Broker":
        from moldau.testing.broker import Broker

        return Broker
    if name == "Cluster":
        from moldau.testing.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
