"""BrokerRegistration, BrokerHeartbeat, AllocateProducerIds and UnregisterBroker, encoded and decoded."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.controller.messages import heartbeat_reply, heartbeat_request, registration_request
from moldau.controller.requests import BrokerHeartbeat, BrokerHeartbeatReply, BrokerRegistrationRequest, OfflineReplica
from moldau.errors import (
    BrokerIdNotRegisteredError,
    CoordinatorLoadInProgressError,
    DuplicateBrokerRegistrationError,
    MoldauError,
    NotControllerError,
    StaleBrokerEpochError,
    StorageError,
)
from moldau.handlers import REGISTRY
from moldau.metadata.image import Endpoint
from moldau.server.api import ClientConnection, RequestContext
from moldau.transactions.producer_id_manager import ProducerIdManager
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder
from support.admin_broker import handle

REGISTER, BEAT = ApiKey.BROKER_REGISTRATION, ApiKey.BROKER_HEARTBEAT
IDS, UNREGISTER = ApiKey.ALLOCATE_PRODUCER_IDS, ApiKey.UNREGISTER_BROKER

BROKER = BrokerRegistrationRequest(
    3,
    UUID(int=33),
    (Endpoint("PLAINTEXT", "alpha", 9093), Endpoint("INTERNAL", "beta", 9094, 1)),
    rack="r1",
    cluster_id="ours",
    previous_epoch=17,
    previous_incarnations=(UUID(int=31), UUID(int=32)),
    features={"metadata.version": (30, 30)},
)


class Asked:
    """A fake controller that records its calls and returns or raises what it was given."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self.calls: list[Any] = []
        self.closed: list[tuple[int, int]] = []

    def _answered(self, *calls: Any) -> Any:
        self.calls.append(calls)
        if isinstance(self.response, MoldauError):
            raise self.response
        return self.response

    async def register_broker(self, broker: BrokerRegistrationRequest, *, is_remote: bool) -> int:
        found: int = self._answered(broker, is_remote)
        return found

    async def heartbeat(self, beat: BrokerHeartbeat) -> BrokerHeartbeatReply:
        found: BrokerHeartbeatReply = self._answered(beat)
        return found

    async def unregister_broker(self, broker_id: int) -> None:
        self._answered(broker_id)

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> range:
        found: range = self._answered(broker_id, broker_epoch)
        return found

    def broker_connection_closed(self, broker_id: int, broker_epoch: int) -> None:
        self.closed.append((broker_id, broker_epoch))


class BrokerOf:
    def __init__(self, controller: Asked) -> None:
        self.controller = controller
        self.disconnected: list[int] = []
        self.availability = SimpleNamespace(on_disconnect=self.disconnected.append)
        self.connection = ClientConnection("127.0.0.1:5000", "PLAINTEXT")

    def send(self, api_key: ApiKey, version: int, tree: dict[str, Any]) -> Message:
        sent = bytearray()
        encoder(api_key, version, "request")(sent, tree)
        session = RequestContext(self.connection, version, "tests")
        request = decoder(api_key, version, "request")(memoryview(sent))
        response = asyncio.run(handle(api_key, request, session, self))
        got = bytearray()
        encoder(api_key, version, "response")(got, response)
        return decoder(api_key, version, "response")(memoryview(got))


def versions_of(api_key: ApiKey) -> range:
    return range(REGISTRY[api_key].min_version, REGISTRY[api_key].max_version + 1)


@pytest.mark.parametrize("version", versions_of(REGISTER))
def test_a_registration_round_trips(version: int) -> None:
    broker = BrokerOf(Asked(41))
    response = broker.send(REGISTER, version, registration_request(BROKER))
    assert (response.error_code, response.broker_epoch) == (0, 41)
    [(calls, is_remote)] = broker.controller.calls
    assert (calls.broker_id, calls.incarnation_id, tuple(calls.endpoints)) == (3, UUID(int=33), BROKER.endpoints)
    assert (calls.rack, calls.cluster_id, calls.previous_epoch) == ("r1", "ours", 17)
    assert calls.previous_incarnations == (UUID(int=31), UUID(int=32))
    assert calls.features == {"metadata.version": (30, 30)}
    assert is_remote


@pytest.mark.parametrize(("error", "code"), [(NotControllerError(""), 41), (DuplicateBrokerRegistrationError(""), 101)])
def test_a_rejected_registration_has_an_error_code(error: MoldauError, code: int) -> None:
    response = BrokerOf(Asked(error)).send(REGISTER, 4, registration_request(BROKER))
    assert (response.error_code, response.broker_epoch) == (code, -1)


def test_a_registration_without_incarnation_id_is_rejected() -> None:
    broker = BrokerOf(Asked(41))
    response = broker.send(REGISTER, 4, {**registration_request(BROKER), "incarnation_id": None})
    assert response.error_code == 119
    assert broker.controller.calls == []


@pytest.mark.parametrize("version", versions_of(BEAT))
def test_a_heartbeat_and_its_response_round_trip(version: int) -> None:
    broken = OfflineReplica(UUID(int=4), 2, 3, "it is damaged")
    full = OfflineReplica(UUID(int=4), 5, 3, "No space left on device", is_transient=True)
    beat = BrokerHeartbeat(3, 41, 99, want_fence=True, want_shut_down=True, not_ready=[broken, full])
    broker = BrokerOf(Asked(BrokerHeartbeatReply(True, False, True, confirmed_age_ms=7)))
    response = broker.send(BEAT, version, heartbeat_request(beat))
    assert (response.error_code, response.is_caught_up, response.is_fenced, response.should_shut_down) == (
        0,
        True,
        False,
        True,
    )
    assert heartbeat_reply(response) == BrokerHeartbeatReply(True, False, True, confirmed_age_ms=7)
    assert broker.controller.calls == [(beat,)]


def test_a_rejected_heartbeat_grants_nothing() -> None:
    response = BrokerOf(Asked(StaleBrokerEpochError(""))).send(BEAT, 1, heartbeat_request(BrokerHeartbeat(3, 41, 99)))
    assert (response.error_code, response.is_caught_up, response.is_fenced, response.should_shut_down) == (
        77,
        False,
        True,
        False,
    )


def test_closing_a_heartbeat_connection_notifies_once_per_broker_epoch() -> None:
    controller = Asked(BrokerHeartbeatReply(True, False, False))
    broker = BrokerOf(controller)
    for epoch in (41, 41, 55, 55):
        broker.send(BEAT, 1, heartbeat_request(BrokerHeartbeat(3, epoch, 99)))
    assert controller.closed == []
    broker.connection.close_callbacks.close()
    assert controller.closed == [(3, 41), (3, 55)]
    assert broker.disconnected == [3, 3]


def test_closing_a_connection_with_rejected_heartbeats_notifies_nobody() -> None:
    """Otherwise any client could report any broker as down."""
    controller = Asked(StaleBrokerEpochError(""))
    broker = BrokerOf(controller)
    broker.send(BEAT, 1, heartbeat_request(BrokerHeartbeat(3, 41, 99)))
    broker.connection.close_callbacks.close()
    assert (controller.closed, broker.disconnected) == ([], [])


def test_producer_ids_are_allocated_in_blocks() -> None:
    tree = {"broker_id": 3, "broker_epoch": 41}
    broker = BrokerOf(Asked(range(2000, 3000)))
    response = broker.send(IDS, 0, tree)
    assert (response.error_code, response.producer_id_start, response.producer_id_len) == (0, 2000, 1000)
    assert broker.controller.calls == [(3, 41)]
    assert BrokerOf(Asked(NotControllerError(""))).send(IDS, 0, tree).error_code == 41


def test_a_rejected_unregistration_has_a_message() -> None:
    response = BrokerOf(Asked(None)).send(UNREGISTER, 0, {"broker_id": 3})
    assert (response.error_code, response.error_message) == (0, None)
    refused = BrokerIdNotRegisteredError("Broker 3 is not registered.")
    response = BrokerOf(Asked(refused)).send(UNREGISTER, 0, {"broker_id": 3})
    assert (response.error_code, response.error_message) == (102, "Broker 3 is not registered.")


def test_inter_broker_apis_are_marked_as_such() -> None:
    assert all(REGISTRY[each].inter_broker for each in (REGISTER, BEAT, IDS))
    assert REGISTRY[UNREGISTER].forwarded
    assert not REGISTRY[UNREGISTER].inter_broker


def test_clients_retry_while_no_producer_ids_are_available() -> None:
    async def story() -> None:
        responses: list[Any] = [
            NotControllerError(""),
            StaleBrokerEpochError(""),
            range(5, 7),
            StorageError("EIO"),
            range(9, 10),
        ]

        async def allocate() -> range:
            response = responses.pop(0)
            if isinstance(response, MoldauError):
                raise response
            found: range = response
            return found

        ids = ProducerIdManager(allocate)
        for _ in range(2):
            with pytest.raises(CoordinatorLoadInProgressError):
                await ids.generate_producer_id()
        assert [await ids.generate_producer_id(), await ids.generate_producer_id()] == [5, 6]
        with pytest.raises(StorageError):
            await ids.generate_producer_id()
        assert await ids.generate_producer_id() == 9

    asyncio.run(story())
