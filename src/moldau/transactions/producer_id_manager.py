"""Producer ids for this node's clients, taken from the controller in blocks so that most cost no metadata
write."""

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
        """`allocate` asks the active controller, wherever it is, for a block in this broker's name."""
        self._allocate = allocate
        self._block = iter(range(0))
        self._lock = asyncio.Lock()

    async def generate_producer_id(self) -> int:
        """An id that nobody in the cluster has had before.

        Raises CoordinatorLoadInProgressError while no controller can be asked: clients then ask again.
        """
        async with self._lock:
            for producer_id in self._block:
                return producer_id
            try:
                self._block = iter(await self._allocate())
            except _RETRIABLE_ERRORS as error:
                raise CoordinatorLoadInProgressError(
                    f"no producer ids are at hand, and the controller cannot be asked for more: {error}"
                ) from error
            return next(self._block)
