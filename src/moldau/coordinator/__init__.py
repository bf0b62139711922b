"""One way to decide and be durable: a decision is records plus a reply, and the reply waits for the records.

`decision.py` is the value that pure state machines return; `runtime.py` appends, applies and lets replies go.
"""

from moldau.coordinator.result import CoordinatorResult

__all__ = ["CoordinatorResult"]
