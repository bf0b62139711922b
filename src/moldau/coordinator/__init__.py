"""The runtime of replicated state machines: a result is records plus a response, sent once the records commit."""

from moldau.coordinator.result import CoordinatorResult

__all__ = ["CoordinatorResult"]
