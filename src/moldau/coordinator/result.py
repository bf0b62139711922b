"""The result of an operation: records for the log, and the response to send once they are committed. Pure."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

R = TypeVar("R")
T = TypeVar("T")

RequestId = int
"""Identifies a request until it is completed. The driver assigns the id."""


class Now(NamedTuple):
    monotonic_ms: int
    """Used for timeouts."""
    wall_ms: int
    """Used for timestamps in records, and for timeouts that start at such a timestamp."""


class CoordinatorResult(NamedTuple, Generic[R, T]):
    records: Sequence[R]
    """The records to append, as one batch. Empty for reads and rejected requests."""
    response: T
    min_committed_offset: int | None = None
    """Used only if there are no records: the response is sent when the high watermark reaches this offset.

    None means that the response is sent when everything that was appended before the operation is committed.
    """


class CompletedRequest(NamedTuple, Generic[T]):
    """A request that an operation completes. `response` may be an error."""

    request_id: RequestId
    response: T
