"""Producer ids for this node's clients, allocated by the controller in blocks (Kafka's ProducerIdManager)."""

import asyncio
from collections.abc import Awaitable, Callable

from moldau.errors import (
    BrokerIdNotRegisteredError,
    CoordinatorLoadInProgressError,
    NotControllerError,
    PeerUnreachableError,
    RequestTimedOutError,
    StaleBrokerEpochError,
)

_RETRIABLE_ERRORS = (
    NotControllerError,
    PeerUnreachableError,
    RequestTimedOutError,
    BrokerIdNotRegisteredError,
    StaleBrokerEpochError,
)


class ProducerIdManager:
    def __init__(self, allocate: Callable[[], Awaitable[range]]) -> None:
        """`allocate` requests a block from the active controller."""
        self._allocate = allocate
        self._block = iter(range(0))
        self._lock = asyncio.Lock()

    async def generate_producer_id(self) -> int:
        """Returns a producer id that is unused in the cluster.

        Raises CoordinatorLoadInProgressError if the controller cannot be reached. Clients retry after this error.
        """
        async with self._lock:
            for producer_id in self._block:
                return producer_id
            try:
                self._block = iter(await self._allocate())
            except _RETRIABLE_ERRORS as error:
                raise CoordinatorLoadInProgressError(
                    f"the controller could not allocate producer ids: {error}"
                ) from error
            return next(self._block)
