"""The result of an operation: records for the log, and the response to send once they are committed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CoordinatorResult(Generic[R, T]):
    records: Sequence[R]
    """Appended as one batch. Empty for reads and rejected requests."""
    response: T
    min_committed_offset: int | None = None
    """For a response without records: it may be sent once everything below this offset is committed.

    None: once everything that was appended before is committed.
    """
