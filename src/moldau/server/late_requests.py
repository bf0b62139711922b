"""Rejects requests of a transaction without TV2 that arrive after the client has sent them again.

A client that gets no response opens a new connection and repeats its request there. The first copy can still arrive:
TCP retransmits it after a network partition, or this node was paused. With TV2 (KIP-890) every transaction has its own
producer epoch, so the late copy is fenced. Without TV2, a late EndTxn would end the producer's next transaction. The
order of connections tells the copies apart, because a connection delivers its requests in the order of sending.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from moldau.network.connection import CloseConnectionError
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock
from moldau.server.api import ClientConnection

log = get_logger(__name__)

RETENTION_MIN_MS = 600_000
PRODUCERS_MAX = 100_000


class RequestStream(Enum):
    """Requests that a producer, or a coordinator for it, sends over one connection at a time."""

    TRANSACTION = "AddPartitionsToTxn, AddOffsetsToTxn and EndTxn"
    OFFSETS = "TxnOffsetCommit"
    MARKERS = "WriteTxnMarkers"


class _LatestConnection(NamedTuple):
    number: int
    used_at_ms: int


class LateRequestFilter:
    """Remembers the latest connection of each stream of requests."""

    def __init__(self, clock: Clock, connections_max_idle_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._connections_max_idle_ms = connections_max_idle_ms
        self._latest: dict[tuple[RequestStream, int, int, int], _LatestConnection] = {}
        """By stream, producer id, producer epoch and coordinator epoch, in the order of use."""

    def check(
        self,
        stream: RequestStream,
        producer_id: int,
        producer_epoch: int,
        connection: ClientConnection,
        *,
        coordinator_epoch: int = -1,
    ) -> None:
        """Raises CloseConnectionError if the stream has moved to a connection that was opened after this one.

        Each producer epoch has its own stream, because requests of earlier epochs are fenced anyway, and so has each
        coordinator. A client that uses both connections gets no response either, and repeats the request on a new
        connection.
        """
        now_ms = self._clock.monotonic_ms()
        key = stream, producer_id, producer_epoch, coordinator_epoch
        latest = self._latest.pop(key, None)
        if latest is not None and connection.number < latest.number:
            self._latest[key] = latest._replace(used_at_ms=now_ms)
            log.info("rejected a late request", requests=stream.value, producer_id=producer_id, peer=connection.peer)
            raise CloseConnectionError(f"late {stream.value}: producer {producer_id} uses a newer connection")
        self._latest[key] = _LatestConnection(connection.number, now_ms)
        self._remove_expired(now_ms)

    def _remove_expired(self, now_ms: int) -> None:
        """Forgets producers that were not active for as long as a connection may be idle.

        An older connection has been closed by then, or has delivered a request and with it all earlier ones.
        """
        retention_ms = max(RETENTION_MIN_MS, self._connections_max_idle_ms())
        while True:
            key, latest = next(iter(self._latest.items()))
            if latest.used_at_ms >= now_ms - retention_ms and len(self._latest) <= PRODUCERS_MAX:
                return
            del self._latest[key]
