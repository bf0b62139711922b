"""The runtime of replicated state machines.

The result of an operation is records plus a response. The response is sent when the records are committed.
"""

from moldau.coordinator.result import CoordinatorResult

__all__ = ["CoordinatorResult"]
