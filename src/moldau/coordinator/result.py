"""The result of an operation: records for the log, and the response to send once they are committed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CoordinatorResult(Generic[R, T]):
    records: Sequence[R]
    """The records to append, as one batch. Empty for reads and rejected requests."""
    response: T
    min_committed_offset: int | None = None
    """Used only if there are no records: the response is sent when the high watermark reaches this offset.

    None means that the response is sent when everything that was appended before the operation is committed.
    """
