"""Which connection a stream of requests has moved to, and for how long that is remembered."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from moldau.network.connection import CloseConnectionError
from moldau.server.api import ClientConnection
from moldau.server.late_requests import RETENTION_MIN_MS, LateRequestFilter, RequestStream

OLD, NEW = ClientConnection("client:1", "PLAINTEXT", 1), ClientConnection("client:2", "PLAINTEXT", 2)
PRODUCER = 7


class Requests:
    def __init__(self, *, connections_max_idle_ms: int = 1_000) -> None:
        self.now_ms = 5_000
        clock = SimpleNamespace(monotonic_ms=lambda: self.now_ms)
        self.filter = LateRequestFilter(cast(Any, clock), lambda: connections_max_idle_ms)

    def is_late(
        self,
        connection: ClientConnection,
        producer_id: int = PRODUCER,
        stream: RequestStream = RequestStream.TRANSACTION,
        epoch: int = 0,
    ) -> bool:
        try:
            self.filter.check(stream, producer_id, epoch, connection)
        except CloseConnectionError:
            return True
        return False


def test_a_request_on_an_older_connection_is_late() -> None:
    requests = Requests()
    assert not requests.is_late(OLD)
    assert not requests.is_late(NEW)
    assert requests.is_late(OLD)
    assert requests.is_late(OLD)
    assert not requests.is_late(NEW)


def test_producers_and_streams_are_independent() -> None:
    requests = Requests()
    assert not requests.is_late(NEW)
    assert not requests.is_late(OLD, PRODUCER + 1)
    assert not requests.is_late(OLD, stream=RequestStream.OFFSETS)
    assert not requests.is_late(OLD, stream=RequestStream.MARKERS)


def test_a_fenced_producer_does_not_disturb_its_successor() -> None:
    requests = Requests()
    assert not requests.is_late(OLD, epoch=1)
    assert not requests.is_late(NEW, epoch=0)
    assert not requests.is_late(OLD, epoch=1)


@pytest.mark.parametrize("idle_ms", [1_000, 2 * RETENTION_MIN_MS])
def test_a_producer_is_forgotten_when_idle_connections_are_closed(idle_ms: int) -> None:
    requests = Requests(connections_max_idle_ms=idle_ms)
    retention_ms = max(idle_ms, RETENTION_MIN_MS)
    assert not requests.is_late(NEW)
    requests.now_ms += retention_ms
    assert not requests.is_late(NEW, PRODUCER + 1)
    assert requests.is_late(OLD), "the last use was not longer ago"
    requests.now_ms += retention_ms + 1
    assert not requests.is_late(NEW, PRODUCER + 1)
    assert not requests.is_late(OLD)


def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.server.late_requests.PRODUCERS_MAX", 2)
    requests = Requests()
    for producer_id in (1, 2, 3):
        assert not requests.is_late(NEW, producer_id)
    assert requests.is_late(OLD, 3)
    assert requests.is_late(OLD, 2)
    assert not requests.is_late(OLD, 1), "the least recently used one is forgotten"
