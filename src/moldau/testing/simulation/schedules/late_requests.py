"""The filter of late requests in a schedule, which has no time: no connection is ever idle."""

from typing import Any, cast

from moldau.network.connection import CloseConnectionError
from moldau.server.api import ClientConnection
from moldau.server.late_requests import LateRequestFilter, RequestStream


class _StoppedClock:
    def monotonic_ms(self) -> int:
        return 0


def new_late_request_filter() -> LateRequestFilter:
    return LateRequestFilter(cast(Any, _StoppedClock()), lambda: 0)


def is_late(
    late_requests: LateRequestFilter,
    stream: RequestStream,
    producer_id: int,
    producer_epoch: int,
    connection: ClientConnection,
    coordinator_epoch: int = -1,
) -> bool:
    try:
        late_requests.check(stream, producer_id, producer_epoch, connection, coordinator_epoch=coordinator_epoch)
    except CloseConnectionError:
        return True
    return False
