"""What a state machine decided: records for its log, and the reply that may leave once they are durable."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CoordinatorResult(Generic[R, T]):
    records: Sequence[R]
    """All or nothing: they are appended as one batch. Empty for read-only answers and refusals."""
    reply: T
    min_committed_offset: int | None = None
    """Of a reply without records: what it tells of is in the log below this offset, and it may leave when that much is
    committed. None: it may tell of anything that was decided before."""
